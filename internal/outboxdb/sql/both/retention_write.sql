INSERT INTO outbox_settings (name, value) VALUES ('retention', ?0)
ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE outbox_settings.value <> excluded.value
