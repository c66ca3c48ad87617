INSERT INTO outbox_lanes (target)
SELECT v.target FROM unnest((SELECT $1::text[])::text[]) AS v(target)
WHERE NOT EXISTS (SELECT 1 FROM outbox_lanes AS l WHERE l.target = v.target)
ON CONFLICT (target) DO NOTHING;
INSERT INTO outbox_partitions (lane, part)
SELECT l.id, n FROM outbox_lanes AS l CROSS JOIN generate_series(0, (SELECT $2::integer) - 1) AS n
WHERE l.target = ANY ((SELECT $1::text[])::text[]) AND NOT EXISTS (SELECT 1 FROM outbox_partitions AS p WHERE p.lane = l.id AND p.part = n)
ON CONFLICT (lane, part) DO NOTHING
