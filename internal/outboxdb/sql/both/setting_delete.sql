DELETE FROM outbox_settings WHERE name = ?0
