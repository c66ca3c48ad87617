SELECT l.id, l.target, (SELECT count(*) FROM outbox_partitions AS p WHERE p.lane = l.id)
FROM outbox_lanes AS l WHERE l.target = ANY ((SELECT $1::text[])::text[])
