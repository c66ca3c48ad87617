INSERT INTO outbox_jobs (name, due_at) VALUES (?0, ?1)
ON CONFLICT (name) DO UPDATE SET due_at = excluded.due_at WHERE outbox_jobs.due_at <= ?2 OR outbox_jobs.due_at > ?1
