SELECT m.name, m.until
FROM outbox_messages AS b
JOIN outbox_partitions AS p ON p.lane = b.lane AND p.part = b.part
JOIN outbox_members AS m ON m.member = p.owner
WHERE b.seq = ?0 AND m.until > ?1
