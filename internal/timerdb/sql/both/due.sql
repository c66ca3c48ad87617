SELECT id, key, length(payload) FROM timers
WHERE status = 'waiting' AND coalesce(message ->> 'target', '') = ?2 AND available_at <= (SELECT ?0) AND (?3)
ORDER BY available_at, id LIMIT ?1
