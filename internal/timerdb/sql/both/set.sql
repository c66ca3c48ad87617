INSERT INTO timers (id, owner, name, available_at, key, message, payload)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (owner, name) DO UPDATE SET id = excluded.id, available_at = excluded.available_at, set_at = excluded.set_at,
	status = 'waiting', sent_at = NULL, error = NULL, key = excluded.key, message = excluded.message, payload = excluded.payload
