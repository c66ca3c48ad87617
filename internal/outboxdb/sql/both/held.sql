SELECT l.target, count(*), CAST(sum((SELECT count(*) FROM outbox_queue AS q WHERE q.key = h.key AND q.seq > h.seq)) AS bigint)
FROM outbox_queue AS h JOIN outbox_lanes AS l ON l.id = h.lane
WHERE h.held
GROUP BY l.target
