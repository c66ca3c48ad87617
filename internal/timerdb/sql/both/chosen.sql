SELECT t.id, t.status FROM timers AS t WHERE (?match) ORDER BY t.available_at, t.id
