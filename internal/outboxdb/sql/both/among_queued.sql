SELECT seq FROM outbox_queue WHERE NOT held
