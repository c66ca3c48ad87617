-- tolerates: 2
-- Builds that know less would change documents in a form that they can't read, and leave
-- its number beside what they wrote.
--
-- A document says in which form it is, so that builds that write one and read others
-- can run side by side.
ALTER TABLE documents ADD COLUMN state_version integer NOT NULL DEFAULT 1 CHECK (state_version > 0);

COMMENT ON COLUMN documents.state_version IS 'form of state: domain.StateVersion of the build that wrote it, or what its domain.WriteState says';
