DELETE FROM outbox_messages WHERE seq IN (?0)
