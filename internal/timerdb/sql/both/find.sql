SELECT t.id, t.owner, t.name, coalesce(t.message ->> 'type', ''), t.status, t.available_at, t.set_at, t.sent_at,
    coalesce(t.message ->> 'tenant_id', ''), coalesce(t.message ->> 'correlation_id', ''), CASE WHEN t.status = 'broken' THEN coalesce(t.error, '') ELSE '' END
FROM timers AS t
WHERE (?match) AND (?behind)
ORDER BY t.available_at, t.id LIMIT ?rows
