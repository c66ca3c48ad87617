SELECT value FROM outbox_settings WHERE name = 'retention'
