WITH o AS (
	INSERT INTO outbox_messages (lane, part, id, message_id, stream, stream_category, topic, partition_key, message_type,
		aggregate_type, aggregate_id, aggregate_version, payload, content_type, cloud_event, correlation_id, causation_id,
		tenant_id, traceparent, priority, occurred_at, key, topic_hash, bytes)
	VALUES {rows}
	RETURNING lane, part, seq, key, topic_hash, priority, bytes
)
INSERT INTO outbox_queue (lane, part, seq, key, topic, class, bytes)
SELECT lane, part, seq, key, topic_hash, (priority > 0)::integer - (priority < 0)::integer, bytes FROM o
