DELETE FROM timers WHERE id IN (?0)
