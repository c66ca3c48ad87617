-- tolerates: 1
-- Builds that know less stop at a timer whose message can't be read, and list none that is set aside.
--
-- A timer whose message can't be sent is set aside: the others of its broker go on.
ALTER TABLE timers DROP CONSTRAINT timers_status_check;
ALTER TABLE timers ADD CONSTRAINT timers_status_check CHECK (status IN ('waiting', 'sent', 'broken'));
ALTER TABLE timers ADD COLUMN error text CHECK (length(error) <= 2048);
CREATE INDEX timers_broken ON timers (available_at, id) WHERE status = 'broken';

COMMENT ON COLUMN timers.status IS 'waiting -> sent (its message is in the outbox, or on its way) | broken (its message can''t be sent; an operator decides)';
COMMENT ON COLUMN timers.error IS 'why its message can''t be sent, while it is broken';
