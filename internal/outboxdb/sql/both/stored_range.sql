SELECT COALESCE(min(seq), 0), COALESCE(max(seq), 0) + 1 FROM outbox_messages
