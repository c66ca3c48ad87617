(?target = '' OR o.target_broker = ?target)
AND ?message
AND (?failure_class = '' OR o.failure_class = ?failure_class)
AND (?error = '' OR strpos(o.last_error, ?error) > 0)
AND (?message_id = '' OR o.message_id = NULLIF(?message_id, '')::uuid)
AND (NOT ?by_status OR o.status IN (?statuses))
AND (NOT ?held OR o.held)
AND (NOT ?stale OR o.status = 'processing' AND o.locked_until <= ?now)
AND (NOT ?retry_ready OR o.status = 'failed' AND o.available_at <= ?now)
