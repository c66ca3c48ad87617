SELECT message_id FROM outbox_messages WHERE lane = (SELECT id FROM outbox_lanes WHERE target = ?0) AND message_id IN (?1)
