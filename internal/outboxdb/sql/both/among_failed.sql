SELECT seq FROM outbox_queue WHERE due_at IS NOT NULL AND NOT held
