-- All hangs on the token: without it nothing happens [NOTOKEN]. Lists have their lane
-- with them: given as a value it would have a plan for an empty table read all of the
-- lane, and compare it with a list.
WITH token AS (
	DELETE FROM outbox_claims WHERE member = $1::bigint AND n = $2::bigint RETURNING member
), acknowledged AS MATERIALIZED (
	SELECT $3::smallint AS lane, u.part, u.seq
	FROM token CROSS JOIN unnest((SELECT $4::smallint[])::smallint[], (SELECT $5::bigint[])::bigint[]) AS u(part, seq)
), gone AS (
	DELETE FROM outbox_queue AS q USING acknowledged AS v
	WHERE q.lane = v.lane AND q.part = v.part AND q.seq = v.seq
	RETURNING q.seq, q.attempts
), bodies AS (
	-- A target that is joining may need what is above its cursor.
	DELETE FROM outbox_messages AS b USING gone
	WHERE $6::boolean AND b.seq = gone.seq
		AND b.seq <= COALESCE((SELECT min(value::bigint) FROM outbox_settings WHERE name LIKE 'backfill:%'), 9223372036854775807)
), logged AS (
	INSERT INTO outbox_log (lane, member, n, published, retries, low, high, seqs, attempts)
	SELECT $3::smallint, $1::bigint, $2::bigint, count(*), sum(attempts), min(seq), max(seq), array_agg(seq),
		CASE WHEN max(attempts) > 0 THEN array_agg((attempts + 1)::smallint) END
	FROM gone HAVING count(*) > 0
)
SELECT member FROM token
