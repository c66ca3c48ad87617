SELECT b.message_type, count(*), min(b.occurred_at), max(b.occurred_at) FROM outbox_messages AS b
WHERE ?0 AND substr(b.stream_category, 1, length(?1)) = ?1 AND b.seq > ?2
GROUP BY b.message_type
