SELECT seq FROM outbox_queue WHERE held
