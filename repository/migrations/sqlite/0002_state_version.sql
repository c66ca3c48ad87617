-- tolerates: 2
-- Builds that know less would change documents in a form that they can't read, and leave
-- its number beside what they wrote.
--
-- A document says in which form it is, so that builds that write one and read others
-- can run side by side: domain.StateVersion of the build that wrote it, or what its
-- domain.WriteState says.
ALTER TABLE documents ADD COLUMN state_version INTEGER NOT NULL DEFAULT 1 CHECK (state_version > 0);
