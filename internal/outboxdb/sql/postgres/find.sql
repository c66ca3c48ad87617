-- OFFSET 0 keeps PostgreSQL from turning the join around: for all that it knows a broker's name
-- is rare, as the few rows of outbox_lanes are never analysed.
SELECT ?columns
FROM (SELECT seq FROM (?among) AS a WHERE seq > ?after AND seq <= ?up_to ORDER BY seq) AS c
CROSS JOIN LATERAL (SELECT * FROM outbox AS o WHERE o.seq = c.seq AND (?match) OFFSET 0) AS o
ORDER BY c.seq
LIMIT ?rows
