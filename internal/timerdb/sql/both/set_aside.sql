UPDATE timers SET status = 'broken', error = ?1 WHERE id = ?0 AND status = 'waiting'
