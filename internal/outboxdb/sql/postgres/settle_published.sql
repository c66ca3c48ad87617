-- All hangs on the token: without it nothing happens [NOTOKEN]. What is joined by ANY is
-- found by an index, row by row, whatever is known of the table: with = alone a plan that
-- was made for an empty one may read all of its index, in order, and compare. By its key,
-- too, so that of either index all columns are known.
WITH token AS (
	DELETE FROM outbox_claims WHERE member = $1::bigint AND n = $2::bigint RETURNING member
), acknowledged AS MATERIALIZED (
	SELECT $3::smallint AS lane, u.*
	FROM token CROSS JOIN unnest((SELECT $4::smallint[])::smallint[], (SELECT $5::bigint[])::bigint[], (SELECT $6::bigint[])::bigint[]) AS u(part, seq, key)
), gone AS (
	DELETE FROM outbox_queue AS q USING acknowledged AS v
	WHERE q.lane = ANY (ARRAY[v.lane]) AND q.key = ANY (ARRAY[v.key]) AND q.part = v.part AND q.seq = v.seq
	RETURNING q.seq, q.attempts
), bodies AS (
	-- A target that is joining may need what is above its cursor.
	DELETE FROM outbox_messages
	WHERE $7::boolean AND seq = ANY ((SELECT array_agg(seq) FROM gone)::bigint[])
		AND seq <= COALESCE((SELECT min(value::bigint) FROM outbox_settings WHERE name LIKE 'backfill:%'), 9223372036854775807)
), logged AS (
	INSERT INTO outbox_log (lane, member, n, published, retries, low, high, seqs, attempts)
	SELECT $3::smallint, $1::bigint, $2::bigint, count(*), sum(attempts), min(seq), max(seq), array_agg(seq),
		CASE WHEN max(attempts) > 0 THEN array_agg((attempts + 1)::smallint) END
	FROM gone HAVING count(*) > 0
)
SELECT member FROM token
