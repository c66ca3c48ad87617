SELECT v.part, u.seq, u.key, u.topic, u.class, u.bytes, u.losses, u.held OR COALESCE(u.due_at > clock_timestamp(), false)
FROM unnest((SELECT $2::smallint[])::smallint[], (SELECT $3::bigint[])::bigint[]) AS v(part, low)
CROSS JOIN LATERAL (
	SELECT q.seq, q.key, q.topic, q.class, q.bytes, q.losses, q.held, q.due_at FROM outbox_queue AS q
	WHERE q.lane = $1::smallint AND q.part = v.part AND q.seq > v.low
	ORDER BY q.seq LIMIT (SELECT $4::integer)
) AS u
