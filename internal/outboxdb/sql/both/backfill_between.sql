-- Events that the history lacks between others that it has: their place is lost.
SELECT count(*), min(b.seq) FROM outbox_messages AS b
WHERE ?0 AND substr(b.stream_category, 1, length(?1)) = ?1 AND b.aggregate_type <> ''
	AND NOT EXISTS (SELECT 1 FROM history AS h WHERE h.message_id = b.message_id)
	AND NOT EXISTS (SELECT 1 FROM events AS e WHERE e.category = b.stream_category AND e.id = b.aggregate_id AND e.version = b.aggregate_version AND e.message_id = b.message_id)
	AND (EXISTS (SELECT 1 FROM history AS h WHERE h.category = b.stream_category AND h.id = b.aggregate_id AND h.version < b.aggregate_version)
		OR EXISTS (SELECT 1 FROM events AS e WHERE e.category = b.stream_category AND e.id = b.aggregate_id AND e.version < b.aggregate_version AND e.message_id IS NOT NULL))
