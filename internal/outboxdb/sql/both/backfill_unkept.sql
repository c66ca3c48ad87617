-- The place of an event in events is its primary key.
SELECT b.seq, b.partition_key, b.message_type, b.payload FROM outbox_messages AS b
WHERE ?0 AND substr(b.stream_category, 1, length(?1)) = ?1 AND b.aggregate_type <> '' AND b.seq > ?2
	AND NOT EXISTS (SELECT 1 FROM history AS h WHERE h.message_id = b.message_id AND h.position >= ?4)
	AND NOT EXISTS (SELECT 1 FROM events AS e WHERE e.category = b.stream_category AND e.id = b.aggregate_id AND e.version = b.aggregate_version AND e.message_id = b.message_id)
ORDER BY b.seq LIMIT ?3
