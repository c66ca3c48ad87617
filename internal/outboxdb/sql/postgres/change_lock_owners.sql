SELECT count(*) FROM (
    SELECT 1 FROM outbox_members WHERE member IN (
        SELECT owner FROM outbox_partitions WHERE (lane, part) IN (SELECT lane, part FROM outbox_messages WHERE seq IN (?0)))
    ORDER BY member FOR NO KEY UPDATE) AS locked
