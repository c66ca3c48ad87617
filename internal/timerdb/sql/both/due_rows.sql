SELECT id, message, payload FROM timers
WHERE id IN (?1) AND status = 'waiting' AND available_at <= (SELECT ?0) ?2
