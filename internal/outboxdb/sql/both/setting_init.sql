INSERT INTO outbox_settings (name, value) VALUES (?0, ?1) ON CONFLICT (name) DO NOTHING
