-- Of the latest of a target that were sent, as older ones have left long ago, or wait for
-- an operator. CROSS JOIN keeps SQLite from turning the join around.
SELECT count(*)
FROM (SELECT id FROM timers WHERE status = 'sent' AND coalesce(message ->> 'target', '') = ?1 ORDER BY sent_at DESC LIMIT ?0) AS t
CROSS JOIN outbox_messages AS m
CROSS JOIN outbox_queue AS q
WHERE m.message_id = t.id AND q.lane = m.lane AND q.part = m.part AND q.seq = m.seq
