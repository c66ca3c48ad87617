SELECT l.target, p.part, m.name, p.owner, m.until, COALESCE(m.until > ?0, FALSE)
FROM outbox_partitions AS p
JOIN outbox_lanes AS l ON l.id = p.lane
LEFT JOIN outbox_members AS m ON m.member = p.owner
