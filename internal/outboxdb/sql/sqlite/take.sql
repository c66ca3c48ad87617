SELECT member FROM outbox_members WHERE member = ?1 AND lane = ?2;
UPDATE outbox_partitions SET owner = ?1
WHERE lane = ?2 AND part IN (SELECT part FROM outbox_partitions WHERE lane = ?2 AND owner IS NULL ORDER BY random() LIMIT ?3)
RETURNING part
