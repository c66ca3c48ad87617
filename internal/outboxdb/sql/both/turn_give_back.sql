UPDATE outbox_jobs SET due_at = ?1 WHERE name = ?0
