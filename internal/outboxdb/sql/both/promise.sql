-- The lowest of each partition; what was put back below: due or failed, held; and what
-- was given up and may have arrived.
WITH l AS (SELECT id FROM outbox_lanes WHERE target = ?0), v (part, low) AS (VALUES ?1)
SELECT f.part, f.seq, b.created_at, ?2
FROM (
    SELECT v.part, (SELECT q.seq FROM outbox_queue AS q WHERE q.lane = (SELECT id FROM l) AND q.part = v.part AND q.seq > v.low ORDER BY q.seq LIMIT 1) AS seq FROM v
    UNION ALL
    SELECT -1, min(seq) FROM outbox_queue WHERE lane = (SELECT id FROM l) AND due_at IS NOT NULL
    UNION ALL
    SELECT -2, min(seq) FROM outbox_queue WHERE lane = (SELECT id FROM l) AND held
    UNION ALL
    SELECT -3, (SELECT seq FROM outbox_abandoned WHERE lane = (SELECT id FROM l) AND maybe_delivered ORDER BY seq LIMIT 1)
) AS f LEFT JOIN outbox_messages AS b ON b.seq = f.seq
