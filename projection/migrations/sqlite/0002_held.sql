-- tolerates: 1
-- As on PostgreSQL: here is one writer, and nobody is waited for.
ALTER TABLE projection_positions ADD COLUMN held_since TEXT;
ALTER TABLE projection_positions ADD COLUMN held_by TEXT;
