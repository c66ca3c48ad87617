-- What is locked is just being settled: its member looks at the key again.
UPDATE outbox_queue AS q SET due_at = ?1
FROM (SELECT q.lane, q.part, q.seq FROM outbox_queue AS q
    WHERE (q.key, q.seq) IN (
        SELECT a.key, (SELECT n.seq FROM outbox_queue AS n WHERE n.key = a.key AND n.seq > a.seq ORDER BY n.seq LIMIT 1)
        FROM outbox_abandoned AS a WHERE a.seq IN (?0))
    ORDER BY q.seq FOR UPDATE OF q SKIP LOCKED) AS n
WHERE q.lane = n.lane AND q.part = n.part AND q.seq = n.seq AND q.due_at IS NULL AND NOT q.held
