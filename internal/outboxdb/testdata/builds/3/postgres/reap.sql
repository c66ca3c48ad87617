SELECT p.part FROM outbox_members AS m JOIN outbox_partitions AS p ON p.lane = m.lane AND p.owner = m.member
WHERE m.member = $1::bigint AND ($2::boolean OR m.until <= clock_timestamp())
ORDER BY p.part FOR NO KEY UPDATE OF p;
-- The mark is what the statements behind it go by: the clock may say something else by then.
UPDATE outbox_members SET until = '-infinity'
WHERE member = $1::bigint AND ($2::boolean OR until <= clock_timestamp())
RETURNING member;
-- Tokens are read in a statement behind the lock: one that reads them before misses a
-- token that a claim is just inserting [SWEEPEARLY]. Those that stay would be settled
-- by the dead beside its successor [KEEPTOKENS].
WITH tokens AS (
	DELETE FROM outbox_claims AS c USING outbox_members AS m
	WHERE m.member = $1::bigint AND m.until = '-infinity' AND c.member = m.member
	RETURNING m.lane, c.seqs
), hand AS MATERIALIZED ( -- by itself: an index of the queue is of no use without the partition
	SELECT t.lane, b.part, t.seq
	FROM (SELECT lane, unnest(seqs) AS seq FROM tokens) AS t
	JOIN outbox_messages AS b ON b.seq = t.seq
), lost AS (
	SELECT q.lane, q.part, q.seq
	FROM hand JOIN outbox_queue AS q ON q.lane = hand.lane AND q.part = hand.part AND q.seq = hand.seq
	ORDER BY q.seq FOR NO KEY UPDATE OF q
)
UPDATE outbox_queue AS q SET losses = least(q.losses + 1, 32767) FROM lost
WHERE q.lane = lost.lane AND q.part = lost.part AND q.seq = lost.seq
RETURNING q.seq;
WITH ended AS (
	DELETE FROM outbox_members WHERE member = $1::bigint AND until = '-infinity' RETURNING member, lane
)
UPDATE outbox_partitions AS p SET owner = NULL FROM ended
WHERE p.lane = ended.lane AND p.owner = ended.member
RETURNING p.part
