SELECT b.seq, CAST(b.message_id AS text), l.target,
	EXISTS (SELECT 1 FROM outbox_queue AS q WHERE q.lane = b.lane AND q.part = b.part AND q.seq = b.seq),
	EXISTS (SELECT 1 FROM outbox_abandoned AS a WHERE a.seq = b.seq)
FROM outbox_messages AS b JOIN outbox_lanes AS l ON l.id = b.lane WHERE b.message_id IN (?0)
