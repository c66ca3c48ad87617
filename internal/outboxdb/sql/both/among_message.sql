SELECT seq FROM outbox_messages WHERE message_id = ?0
