SELECT part, seq, key, topic, due_at
FROM outbox_queue
WHERE lane = $1::smallint AND due_at <= (SELECT clock_timestamp()) AND (due_at, seq) > ((SELECT $2::timestamptz), (SELECT $3::bigint))
ORDER BY due_at, seq LIMIT (SELECT $4::integer)
