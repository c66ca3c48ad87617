SELECT t.id, t.owner, t.name, t.message ->> 'type', t.status, t.available_at, t.set_at, t.sent_at, t.message ->> 'tenant_id', t.message ->> 'correlation_id'
FROM timers AS t
WHERE (?match) AND (NOT ?by_after OR (t.available_at, t.id) > (?after_at, ?after_id))
ORDER BY t.available_at, t.id LIMIT ?rows
