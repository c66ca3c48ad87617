WITH due (seq, at) AS (VALUES ?0)
UPDATE outbox_queue AS q SET attempts = 0, losses = 0, held = false, due_at = due.at::timestamptz
FROM due JOIN outbox_messages AS b ON b.seq = due.seq
WHERE q.lane = b.lane AND q.part = b.part AND q.seq = b.seq
