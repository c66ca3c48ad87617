SELECT seq FROM outbox_messages
