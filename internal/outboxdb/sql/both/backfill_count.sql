-- What has its row from a time when the target was one before keeps that.
SELECT b.message_type, count(*), min(b.occurred_at), max(b.occurred_at) FROM outbox_messages AS b
WHERE ?0 AND substr(b.stream_category, 1, length(?1)) = ?1 AND b.seq > ?2
	AND NOT EXISTS (SELECT 1 FROM outbox_messages AS h WHERE h.lane = (SELECT id FROM outbox_lanes WHERE target = ?3) AND h.message_id = b.message_id)
GROUP BY b.message_type
