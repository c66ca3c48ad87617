SELECT q.seq, count(*) OVER () FROM outbox_queue AS q
LEFT JOIN outbox_messages AS b ON b.seq = q.seq AND b.lane = q.lane AND b.part = q.part AND b.key = q.key
WHERE b.seq IS NULL
ORDER BY q.seq LIMIT 5
