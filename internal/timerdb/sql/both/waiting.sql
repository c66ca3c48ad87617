SELECT count(*) FROM timers WHERE status = 'waiting'
