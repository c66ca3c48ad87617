SELECT p.owner, count(*) OVER () FROM outbox_partitions AS p
WHERE p.owner IS NOT NULL AND p.owner NOT IN (SELECT member FROM outbox_members WHERE lane = p.lane)
ORDER BY p.owner LIMIT 5
