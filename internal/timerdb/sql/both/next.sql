SELECT available_at, ?0 FROM timers WHERE status = 'waiting' ORDER BY available_at, id LIMIT 1
