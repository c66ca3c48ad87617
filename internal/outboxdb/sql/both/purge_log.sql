DELETE FROM outbox_log WHERE id IN (?0)
