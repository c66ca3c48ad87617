UPDATE timers SET status = 'sent', sent_at = ?0 WHERE id IN (?1)
