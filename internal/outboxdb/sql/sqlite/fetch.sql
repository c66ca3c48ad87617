SELECT part, seq, key, topic, class, bytes, losses, held OR COALESCE(due_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), 0)
FROM outbox_queue INDEXED BY outbox_queue_key
WHERE key = ?2 AND seq >= ?3 AND lane = ?1
ORDER BY seq LIMIT +?4
