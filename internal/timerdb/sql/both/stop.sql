DELETE FROM timers WHERE owner = $1 AND name = $2
