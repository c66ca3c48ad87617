-- tolerates: 1
-- Builds that know less leave what others noted here until one of those works on it again.
--
-- Whom a build waits for that has caught up but for what open transactions hold back.
ALTER TABLE projection_positions ADD COLUMN held_since timestamptz, ADD COLUMN held_by text;

COMMENT ON COLUMN projection_positions.held_by IS 'transactions that have written events and were open then, as pg_locks.virtualtransaction has them, with commas: nothing behind the position can be read before they end; null: none';
