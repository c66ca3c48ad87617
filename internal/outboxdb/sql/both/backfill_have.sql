SELECT message_id, EXISTS (SELECT 1 FROM outbox_abandoned AS a WHERE a.seq = b.seq) FROM outbox_messages AS b
WHERE b.lane = (SELECT id FROM outbox_lanes WHERE target = ?0) AND b.message_id IN (?1)
