-- Claims of one member run at a time: they share its row with each other, and with nobody else.
-- A token whose member's row isn't locked can be inserted after the reap, and be
-- settled beside the successor's [NOLOCK]. One whose reap has begun claims nothing more,
-- while the marks of its transactions are read [NOEXPEL]. Nor does one that joined before the
-- server's crash, or on the primary before: what it knows, its partitions among it, may be undone.
INSERT INTO outbox_claims (member, n, seqs)
SELECT m.member, $2::bigint, $3::bigint[] FROM outbox_members AS m
WHERE m.member = $1::bigint AND m.until > 'epoch' AND EXISTS (SELECT FROM outbox_uncrashed AS u WHERE u.member = m.member) FOR SHARE OF m
RETURNING member;
-- What the track believes is read again: an operator may have changed it [NOREREAD].
-- ANY has its reason in settle_published.sql.
WITH v AS MATERIALIZED (
	SELECT $3::smallint AS lane, u.*
	FROM outbox_claims AS c CROSS JOIN unnest((SELECT $4::smallint[])::smallint[], (SELECT $5::bigint[])::bigint[], (SELECT $6::bigint[])::bigint[]) AS u(part, seq, key)
	WHERE c.member = $1::bigint AND c.n = $2::bigint
)
SELECT q.part, q.seq, q.key, q.attempts, q.losses, q.held OR COALESCE(q.due_at > clock_timestamp(), false),
	b.message_id, b.stream_category, b.topic, b.partition_key, b.message_type, b.payload, b.content_type, b.cloud_event,
	b.correlation_id, b.tenant_id, b.traceparent, b.occurred_at, b.created_at, clock_timestamp()
FROM v
JOIN outbox_queue AS q ON q.lane = ANY (ARRAY[v.lane]) AND q.key = ANY (ARRAY[v.key]) AND q.part = v.part AND q.seq = v.seq
JOIN outbox_messages AS b ON b.seq = ANY (ARRAY[v.seq])
