INSERT INTO outbox_insert (target, part, id, message_id, stream, stream_category, topic, partition_key, message_type,
	aggregate_type, aggregate_id, aggregate_version, payload, content_type, cloud_event, correlation_id, causation_id,
	tenant_id, traceparent, priority, occurred_at, key, topic_hash, bytes)
VALUES {rows}
