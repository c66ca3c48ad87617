-- CROSS JOIN keeps SQLite from turning the join around.
SELECT ?columns
FROM (SELECT seq FROM (?among) AS a WHERE seq > ?after AND seq <= ?up_to ORDER BY seq) AS c
CROSS JOIN outbox AS o
WHERE o.seq = c.seq AND (?match)
ORDER BY c.seq
LIMIT ?rows
