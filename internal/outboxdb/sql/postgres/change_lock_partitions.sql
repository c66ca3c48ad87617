SELECT count(*) FROM (
    SELECT 1 FROM outbox_partitions WHERE (lane, part) IN (SELECT lane, part FROM outbox_messages WHERE seq IN (?0))
    ORDER BY lane, part FOR NO KEY UPDATE) AS locked
