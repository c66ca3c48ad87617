SELECT seq FROM outbox_queue WHERE due_at <= ?0 AND NOT held
