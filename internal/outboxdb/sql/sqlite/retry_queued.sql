WITH due (seq, at) AS (VALUES ?0)
UPDATE outbox_queue SET attempts = 0, losses = 0, held = FALSE, due_at = (SELECT at FROM due WHERE due.seq = outbox_queue.seq)
WHERE (lane, part, seq) IN (SELECT lane, part, seq FROM outbox_messages WHERE seq IN (?1))
