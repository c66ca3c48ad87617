INSERT INTO outbox_lanes (target) VALUES (?0) ON CONFLICT (target) DO NOTHING
