DELETE FROM timers WHERE id = $1
