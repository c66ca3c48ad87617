DELETE FROM outbox_abandoned WHERE seq IN (?0)
