DELETE FROM outbox_queue WHERE (lane, part, seq) IN (SELECT lane, part, seq FROM outbox_abandoned WHERE seq IN (?0))
