SELECT seq FROM outbox_queue WHERE held UNION ALL SELECT seq FROM outbox_abandoned
