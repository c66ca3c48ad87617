-- lane + 0, as the primary key would do for a plan made while the table was empty.
SELECT part, seq, key, topic, class, bytes, losses, held OR COALESCE(due_at > clock_timestamp(), false)
FROM outbox_queue
WHERE key = $2::bigint AND seq >= $3::bigint AND lane + 0 = $1::integer
ORDER BY seq LIMIT (SELECT $4::integer)
