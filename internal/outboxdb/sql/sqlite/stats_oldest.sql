SELECT COALESCE(l.target, 'lane ' || u.lane || ', not in outbox_lanes'), (SELECT (julianday(?0) - julianday(b.created_at)) * 86400.0 FROM outbox_messages AS b WHERE b.seq = u.first)
FROM (SELECT lane, min(seq) AS first FROM outbox_queue WHERE NOT held GROUP BY lane) AS u
LEFT JOIN outbox_lanes AS l ON l.id = u.lane
