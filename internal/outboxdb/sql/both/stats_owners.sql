SELECT DISTINCT l.target, m.name
FROM outbox_partitions AS p
JOIN outbox_members AS m ON m.member = p.owner
JOIN outbox_lanes AS l ON l.id = p.lane
WHERE m.until > ?0
ORDER BY 1, 2
