UPDATE outbox_queue SET due_at = ?1
WHERE due_at IS NULL AND NOT held AND (key, seq) IN (
    SELECT a.key, (SELECT n.seq FROM outbox_queue AS n WHERE n.key = a.key AND n.seq > a.seq ORDER BY n.seq LIMIT 1)
    FROM outbox_abandoned AS a WHERE a.seq IN (?0))
