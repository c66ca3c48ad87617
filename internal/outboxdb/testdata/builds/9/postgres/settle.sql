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
	DELETE FROM outbox_messages AS b USING gone
	WHERE $7::boolean AND b.seq = ANY (ARRAY[gone.seq])
		AND gone.seq <= COALESCE((SELECT min(value::bigint) FROM outbox_settings WHERE name LIKE 'backfill:%'), 9223372036854775807)
), logged AS (
	INSERT INTO outbox_log (lane, member, n, published, retries, low, high, seqs, attempts)
	SELECT $3::smallint, $1::bigint, $2::bigint, count(*), sum(attempts), min(seq), max(seq), array_agg(seq),
		CASE WHEN max(attempts) > 0 THEN array_agg((attempts + 1)::smallint) END
	FROM gone HAVING count(*) > 0
), failures AS MATERIALIZED (
	SELECT $3::smallint AS lane, u.*
	FROM token CROSS JOIN unnest((SELECT $8::smallint[])::smallint[], (SELECT $9::bigint[])::bigint[], (SELECT $10::bigint[])::bigint[], (SELECT $11::smallint[])::smallint[], (SELECT $12::bigint[])::bigint[],
		(SELECT $13::integer[])::integer[], (SELECT $14::text[])::text[], (SELECT $15::text[])::text[]) AS u(part, seq, key, attempts, due_in, held, class, error)
), failed AS (
	UPDATE outbox_queue AS q SET attempts = v.attempts, losses = 0, held = v.held <> 0, failure = v.class, error = v.error,
		failed_at = clock_timestamp(), due_at = CASE WHEN v.held = 0 THEN clock_timestamp() + v.due_in * interval '1 millisecond' END
	FROM failures AS v
	WHERE q.lane = ANY (ARRAY[v.lane]) AND q.key = ANY (ARRAY[v.key]) AND q.part = v.part AND q.seq = v.seq
), panicked AS MATERIALIZED (
	SELECT $3::smallint AS lane, u.*
	FROM token CROSS JOIN unnest((SELECT $16::smallint[])::smallint[], (SELECT $17::bigint[])::bigint[], (SELECT $18::bigint[])::bigint[]) AS u(part, seq, key)
), lost AS (
	UPDATE outbox_queue AS q SET losses = least(q.losses + 1, 32767)
	FROM panicked AS v
	WHERE q.lane = ANY (ARRAY[v.lane]) AND q.key = ANY (ARRAY[v.key]) AND q.part = v.part AND q.seq = v.seq
), hopeless AS MATERIALIZED (
	SELECT $3::smallint AS lane, u.*
	FROM token CROSS JOIN unnest((SELECT $19::smallint[])::smallint[], (SELECT $20::bigint[])::bigint[], (SELECT $21::bigint[])::bigint[], (SELECT $22::smallint[])::smallint[], (SELECT $23::smallint[])::smallint[],
		(SELECT $24::integer[])::integer[], (SELECT $25::text[])::text[], (SELECT $26::text[])::text[]) AS u(part, seq, key, attempts, losses, maybe, class, error)
), given_up AS (
	DELETE FROM outbox_queue AS q USING hopeless AS v
	WHERE q.lane = ANY (ARRAY[v.lane]) AND q.key = ANY (ARRAY[v.key]) AND q.part = v.part AND q.seq = v.seq
	RETURNING q.lane, q.part, q.seq, q.key, v.attempts, v.losses, v.maybe, v.class, v.error
), moved AS (
	INSERT INTO outbox_abandoned (seq, lane, part, key, class, error, attempts, losses, maybe_delivered)
	SELECT seq, lane, part, key, class, error, attempts, losses, maybe <> 0 FROM given_up
), freed AS (
	-- Nobody else would look for what is behind a row that leaves undelivered [SKIPNODUE].
	-- It is the next one that stays: what leaves with this statement is passed.
	UPDATE outbox_queue AS q SET due_at = clock_timestamp()
	FROM given_up AS g CROSS JOIN LATERAL (
		SELECT n.lane, n.part, n.key, n.seq FROM outbox_queue AS n
		WHERE n.key = g.key AND n.seq > g.seq
			AND n.seq <> ALL ((SELECT $5::bigint[])::bigint[]) AND n.seq <> ALL ((SELECT $20::bigint[])::bigint[])
		ORDER BY n.seq LIMIT 1
	) AS n
	WHERE q.lane = ANY (ARRAY[n.lane]) AND q.key = ANY (ARRAY[n.key]) AND q.part = n.part AND q.seq = n.seq AND q.due_at IS NULL AND NOT q.held
		AND q.seq <> ALL ((SELECT $9::bigint[])::bigint[]) AND q.seq <> ALL ((SELECT $17::bigint[])::bigint[])
)
SELECT member FROM token
