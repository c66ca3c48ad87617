SELECT 1 FROM outbox_settings WHERE name = ?0 FOR UPDATE
