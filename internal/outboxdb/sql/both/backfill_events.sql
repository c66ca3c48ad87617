SELECT b.seq, b.partition_key, b.message_type, b.payload FROM outbox_messages AS b
WHERE ?0 AND substr(b.stream_category, 1, length(?1)) = ?1 AND b.seq > ?2 AND b.seq <= ?3
ORDER BY b.seq LIMIT ?4
