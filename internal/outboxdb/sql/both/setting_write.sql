INSERT INTO outbox_settings (name, value) VALUES (?0, ?1)
ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE outbox_settings.value <> excluded.value
