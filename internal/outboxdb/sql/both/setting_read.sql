SELECT value FROM outbox_settings WHERE name = ?0
