SELECT member FROM outbox_members WHERE member = ?1 AND lane = ?2 AND until > '1970-01-01T00:00:00.000Z';
UPDATE outbox_partitions SET owner = ?1
WHERE lane = ?2 AND part IN (SELECT part FROM outbox_partitions WHERE lane = ?2 AND owner IS NULL ORDER BY random() LIMIT +?3)
RETURNING part
