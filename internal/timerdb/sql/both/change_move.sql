UPDATE timers SET available_at = ?1, status = 'waiting', error = NULL WHERE id IN (?0)
