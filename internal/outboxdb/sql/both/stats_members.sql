SELECT l.target, m.name, m.healthy, COALESCE(m.trouble, ''), COALESCE(m.broker, ''), (SELECT count(*) FROM outbox_partitions AS p WHERE p.lane = m.lane AND p.owner = m.member)
FROM outbox_members AS m
JOIN outbox_lanes AS l ON l.id = m.lane
WHERE m.until > ?0
ORDER BY 1, 2, m.since, m.member
