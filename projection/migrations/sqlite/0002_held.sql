-- tolerates: 1
-- Builds that know less leave what others noted here until one of those works on it again.
--
-- As on PostgreSQL: here is one writer, and nobody is waited for.
ALTER TABLE projection_positions ADD COLUMN held_since TEXT;
ALTER TABLE projection_positions ADD COLUMN held_by TEXT;
