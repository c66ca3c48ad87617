SELECT COALESCE(max(seq), 0) FROM outbox_messages
