-- What was never counted as an attempt may have been sent all the same, in a call that
-- nobody answered: only what was refused for good at the first one is not there.
INSERT INTO outbox_abandoned (seq, lane, part, key, at, class, error, attempts, losses, maybe_delivered)
SELECT q.seq, q.lane, q.part, q.key, ?1, q.failure, COALESCE(q.error, 'abandoned by an operator'), q.attempts, q.losses,
    NOT (q.attempts = 1 AND q.losses = 0 AND q.failure IS NOT NULL AND q.failure = 'permanent')
FROM outbox_messages AS b JOIN outbox_queue AS q ON q.lane = b.lane AND q.part = b.part AND q.seq = b.seq
WHERE b.seq IN (?0)
