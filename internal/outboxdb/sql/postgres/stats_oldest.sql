SELECT l.target, (SELECT extract(epoch FROM ?0 - b.created_at)::float8 FROM outbox_messages AS b WHERE b.seq = u.first)
FROM (SELECT lane, min(seq) AS first FROM outbox_queue WHERE NOT held GROUP BY lane) AS u
JOIN outbox_lanes AS l ON l.id = u.lane
