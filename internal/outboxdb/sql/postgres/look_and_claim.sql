-- The member's row is locked before rows are read: who has it changes rows [NOREREAD], or
-- ends the member [NOLOCK]. See claim.
SELECT m.member, clock_timestamp() FROM outbox_members AS m
WHERE m.member = $1::bigint AND m.until > 'epoch' AND EXISTS (SELECT FROM outbox_uncrashed AS u WHERE u.member = m.member) FOR SHARE OF m;
-- See look. A member that wasn't there to be locked claims nothing. Nor is anything claimed
-- if a row can't go as it is, or if there is, or may be, more than is to be claimed.
WITH found AS MATERIALIZED (
	SELECT v.part, u.seq, u.key, u.topic, u.class, u.bytes, u.losses, u.held OR COALESCE(u.due_at > clock_timestamp(), false) AS waits, u.attempts,
		row_number() OVER (PARTITION BY v.part) AS place
	FROM unnest((SELECT $4::smallint[])::smallint[], (SELECT $5::bigint[])::bigint[]) AS v(part, low)
	CROSS JOIN LATERAL (
		SELECT q.seq, q.key, q.topic, q.class, q.bytes, q.losses, q.held, q.due_at, q.attempts FROM outbox_queue AS q
		WHERE q.lane = $3::smallint AND q.part = v.part AND q.seq > v.low
		ORDER BY q.seq LIMIT (SELECT $6::integer)
	) AS u
), token AS (
	INSERT INTO outbox_claims (member, n, seqs)
	SELECT m.member, $2::bigint, f.seqs FROM outbox_members AS m
	CROSS JOIN (SELECT array_agg(seq ORDER BY seq) AS seqs, count(*) AS rows, sum(bytes) AS bytes, max(losses) AS losses, bool_or(waits) AS waits, max(place) AS page FROM found) AS f
	WHERE m.member = $1::bigint AND m.until > 'epoch' AND EXISTS (SELECT FROM outbox_uncrashed AS u WHERE u.member = m.member)
		AND f.rows <= $8::integer AND f.bytes <= $7::bigint AND f.losses = 0 AND NOT f.waits AND f.page < $6::integer
	RETURNING member
)
SELECT part, seq, key, topic, class, bytes, losses, waits, attempts, EXISTS (SELECT FROM token) FROM found;
SELECT seq, message_id, stream_category, topic, partition_key, message_type, payload, content_type, cloud_event,
	correlation_id, tenant_id, traceparent, occurred_at, created_at
FROM outbox_messages WHERE seq = ANY ((SELECT seqs FROM outbox_claims WHERE member = $1::bigint AND n = $2::bigint)::bigint[])
