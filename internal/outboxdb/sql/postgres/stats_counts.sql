-- What is in hand is counted twice below, and taken off what it was before.
WITH hand AS (
    SELECT q.lane, CASE WHEN q.attempts > 0 AND q.due_at IS NOT NULL THEN 'failed' ELSE 'pending' END AS was
    FROM (SELECT DISTINCT unnest(c.seqs) AS seq FROM outbox_claims AS c) AS v
    JOIN outbox_messages AS b ON b.seq = v.seq
    JOIN outbox_queue AS q ON q.lane = b.lane AND q.part = b.part AND q.seq = b.seq
    WHERE NOT q.held
), counts AS (
    SELECT id AS lane, 'published' AS status, 0 AS n, 0 AS attempts, 0 AS retries FROM outbox_lanes
    UNION ALL
    SELECT lane, CASE WHEN held THEN 'abandoned' WHEN attempts > 0 AND due_at IS NOT NULL THEN 'failed' ELSE 'pending' END,
        count(*), sum(attempts), sum(CASE WHEN attempts > 1 THEN attempts - 1 ELSE 0 END)
    FROM outbox_queue GROUP BY 1, 2
    UNION ALL
    SELECT lane, 'processing', count(*), 0, 0 FROM hand GROUP BY lane
    UNION ALL
    SELECT lane, was, -count(*), 0, 0 FROM hand GROUP BY lane, was
    UNION ALL
    SELECT lane, 'abandoned', count(*), sum(attempts), sum(CASE WHEN attempts > 1 THEN attempts - 1 ELSE 0 END) FROM outbox_abandoned GROUP BY lane
    UNION ALL
    SELECT lane, 'published', published, published + retries, retries FROM outbox_counts
    UNION ALL
    SELECT lane, 'published', sum(published), sum(published + retries), sum(retries) FROM outbox_log
    WHERE id > COALESCE((SELECT CAST(value AS bigint) FROM outbox_settings WHERE name = 'counted'), 0) GROUP BY lane
)
-- What is of a number that has no name is shown, too: nobody publishes it.
SELECT COALESCE(l.target, 'lane ' || c.lane || ', not in outbox_lanes'), c.status, CAST(sum(c.n) AS bigint), CAST(sum(c.attempts) AS bigint), CAST(sum(c.retries) AS bigint)
FROM counts AS c LEFT JOIN outbox_lanes AS l ON l.id = c.lane
GROUP BY 1, 2
