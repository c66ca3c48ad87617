SELECT part, seq, key, topic, due_at
FROM outbox_queue
WHERE lane = ?1 AND due_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now') AND (due_at, seq) > (?2, ?3)
ORDER BY due_at, seq LIMIT +?4
