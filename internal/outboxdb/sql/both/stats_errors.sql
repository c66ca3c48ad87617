SELECT target, error FROM (
    SELECT COALESCE(l.target, 'lane ' || f.lane || ', not in outbox_lanes') AS target, f.error, row_number() OVER (PARTITION BY f.lane ORDER BY f.at DESC, f.seq DESC) AS nth
    FROM (
        SELECT lane, seq, error, failed_at AS at FROM outbox_queue WHERE failed_at IS NOT NULL AND error IS NOT NULL AND (held OR attempts > 0)
        UNION ALL
        SELECT lane, seq, error, at FROM outbox_abandoned WHERE error IS NOT NULL
    ) AS f LEFT JOIN outbox_lanes AS l ON l.id = f.lane
) AS latest
WHERE nth = 1
