SELECT l.target, u.part, u.n, u.held,
    (SELECT (julianday(?0) - julianday(b.created_at)) * 86400.0 FROM outbox_messages AS b WHERE b.seq = u.first)
FROM (SELECT lane, part, count(*) AS n, sum(held) AS held, min(seq) AS first FROM outbox_queue GROUP BY lane, part) AS u
JOIN outbox_lanes AS l ON l.id = u.lane
