SELECT seq, partition_key, message_type, payload FROM outbox_messages
WHERE lane = (SELECT id FROM outbox_lanes WHERE target = ?0) AND substr(stream_category, 1, length(?1)) = ?1 AND seq > ?2 AND seq <= ?3
ORDER BY seq LIMIT ?4
