SELECT seq FROM outbox_queue UNION ALL SELECT seq FROM outbox_abandoned
