SELECT EXISTS (SELECT 1 FROM outbox_lanes WHERE target = ?0)
