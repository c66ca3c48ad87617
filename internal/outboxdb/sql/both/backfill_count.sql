SELECT message_type, count(*), min(occurred_at), max(occurred_at) FROM outbox_messages
WHERE lane = (SELECT id FROM outbox_lanes WHERE target = ?0) AND substr(stream_category, 1, length(?1)) = ?1 AND seq > ?2
GROUP BY message_type
