DELETE FROM timers WHERE owner = $1
