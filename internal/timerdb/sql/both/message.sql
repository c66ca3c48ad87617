SELECT message, payload FROM timers WHERE id = ?0
