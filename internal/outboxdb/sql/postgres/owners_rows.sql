SELECT l.target, u.part, u.n, u.held,
    (SELECT extract(epoch FROM ?0 - b.created_at)::float8 FROM outbox_messages AS b WHERE b.seq = u.first)
FROM (SELECT lane, part, count(*) AS n, count(*) FILTER (WHERE held) AS held, min(seq) AS first FROM outbox_queue GROUP BY lane, part) AS u
JOIN outbox_lanes AS l ON l.id = u.lane
