-- For more rows than are prepared. A subquery for each of thousands of rows would take
-- longer to plan than all else: lanes are found once for each target. Without a join
-- the rows stay in their order.
WITH o AS (
	INSERT INTO outbox_messages (lane, part, id, message_id, stream, stream_category, topic, partition_key, message_type,
		aggregate_type, aggregate_id, aggregate_version, payload, content_type, cloud_event, correlation_id, causation_id,
		tenant_id, traceparent, priority, occurred_at, key, topic_hash, bytes)
	SELECT CASE lane {lanes} END, part, id::uuid, message_id::uuid, stream, stream_category, topic, partition_key, message_type,
		aggregate_type, aggregate_id, aggregate_version, payload::bytea, content_type, cloud_event, correlation_id, causation_id,
		tenant_id, traceparent, priority, occurred_at::timestamptz, key, topic_hash, bytes
	FROM (VALUES {rows}) AS v (lane, part, id, message_id, stream, stream_category, topic, partition_key, message_type,
		aggregate_type, aggregate_id, aggregate_version, payload, content_type, cloud_event, correlation_id, causation_id,
		tenant_id, traceparent, priority, occurred_at, key, topic_hash, bytes)
	RETURNING lane, part, seq, key, topic_hash, priority, bytes
)
INSERT INTO outbox_queue (lane, part, seq, key, topic, class, bytes)
SELECT lane, part, seq, key, topic_hash, (priority > 0)::integer - (priority < 0)::integer, bytes FROM o
