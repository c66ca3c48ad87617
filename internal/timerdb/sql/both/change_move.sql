UPDATE timers SET available_at = ?1 WHERE id IN (?0)
