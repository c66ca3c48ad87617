SELECT EXISTS (SELECT 1 FROM outbox_queue AS q JOIN outbox_lanes AS l ON l.id = q.lane WHERE l.target = ?)
