INSERT INTO outbox_lanes (target)
SELECT v.value FROM json_each(?1) AS v
WHERE NOT EXISTS (SELECT 1 FROM outbox_lanes AS l WHERE l.target = v.value);
WITH RECURSIVE parts (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM parts WHERE n + 1 < ?2)
INSERT INTO outbox_partitions (lane, part)
SELECT l.id, n FROM outbox_lanes AS l CROSS JOIN parts
WHERE l.target IN (SELECT value FROM json_each(?1)) AND NOT EXISTS (SELECT 1 FROM outbox_partitions AS p WHERE p.lane = l.id AND p.part = n)
