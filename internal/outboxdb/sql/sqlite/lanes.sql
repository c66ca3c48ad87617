SELECT l.id, l.target, (SELECT count(*) FROM outbox_partitions AS p WHERE p.lane = l.id)
FROM outbox_lanes AS l WHERE l.target IN (SELECT value FROM json_each(?1))
