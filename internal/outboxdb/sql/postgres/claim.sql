-- Claims of one member run at a time: they share its row with each other, and with nobody else.
-- A token whose member's row isn't locked can be inserted after the reap, and be
-- settled beside the successor's [NOLOCK]. One whose reap has begun claims nothing more,
-- while the marks of its transactions are read [NOEXPEL]. Nor does one that joined before the
-- server's crash, or on the primary before: what it knows, its partitions among it, may be undone.
INSERT INTO outbox_claims (member, n, seqs)
SELECT m.member, $2::bigint, $3::bigint[] FROM outbox_members AS m
WHERE m.member = $1::bigint AND m.until > 'epoch' AND EXISTS (SELECT FROM outbox_uncrashed AS u WHERE u.member = m.member) FOR SHARE OF m
RETURNING member, clock_timestamp();
-- What the track believes is read again: an operator may have changed it [NOREREAD].
-- OFFSET has each row found by an index, whatever is known of the table: a join's plan that
-- was made for an empty one may read all of it, and compare. By its key, too, so that of
-- either index all columns are known.
SELECT q.*
FROM unnest((SELECT $4::smallint[])::smallint[], (SELECT $5::bigint[])::bigint[], (SELECT $6::bigint[])::bigint[]) AS v(part, seq, key)
CROSS JOIN LATERAL (
	SELECT q.seq, q.attempts, q.losses, q.held OR COALESCE(q.due_at > clock_timestamp(), false) FROM outbox_queue AS q
	WHERE q.lane = $3::smallint AND q.key = v.key AND q.part = v.part AND q.seq = v.seq
	OFFSET 0
) AS q
WHERE EXISTS (SELECT FROM outbox_claims WHERE member = $1::bigint AND n = $2::bigint);
-- Apart from the queue's rows one pass of the index finds all: joined, each row would begin
-- one of its own.
SELECT seq, message_id, stream_category, topic, partition_key, message_type, payload, content_type, cloud_event,
	correlation_id, tenant_id, traceparent, occurred_at, created_at
FROM outbox_messages WHERE seq = ANY ((SELECT seqs FROM outbox_claims WHERE member = $1::bigint AND n = $2::bigint)::bigint[])
