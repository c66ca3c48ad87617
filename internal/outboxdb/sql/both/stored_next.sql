SELECT seq, created_at FROM outbox_messages WHERE seq >= ? ORDER BY seq LIMIT 1
