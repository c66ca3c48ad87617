SELECT (SELECT count(*) FROM timers WHERE status = 'waiting'),
       (SELECT count(*) FROM timers WHERE status = 'waiting' AND available_at <= ?0),
       (SELECT count(*) FROM timers WHERE status = 'sent'),
       (SELECT count(*) FROM timers WHERE status = 'broken')
