SELECT part, seq, key, topic, class, bytes, losses, held OR COALESCE(due_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), 0)
FROM outbox_queue
WHERE lane = ?1 AND part = ?2 AND seq > ?3 AND class > 0
ORDER BY seq LIMIT +?4
