INSERT INTO outbox_claims (member, n, seqs)
SELECT member, ?2, ?3 FROM outbox_members WHERE member = ?1 AND until > '1970-01-01T00:00:00.000Z'
RETURNING member, strftime('%Y-%m-%dT%H:%M:%fZ', 'now');
SELECT q.seq, q.attempts, q.losses, q.held OR COALESCE(q.due_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), 0)
FROM json_each(?4) AS p
CROSS JOIN outbox_queue AS q ON q.lane = ?3 AND q.part = (p.value ->> 0) AND q.seq = (p.value ->> 1);
SELECT b.seq, b.message_id, b.stream_category, b.topic, b.partition_key, b.message_type, b.payload, b.content_type, b.cloud_event,
	b.correlation_id, b.tenant_id, b.traceparent, b.occurred_at, b.created_at
FROM json_each((SELECT seqs FROM outbox_claims WHERE member = ?1 AND n = ?2)) AS p
CROSS JOIN outbox_messages AS b ON b.seq = p.value
