-- tolerates: 4
-- Builds that know less don't see messages that came early: they would handle those of the
-- same key that come later.
--
-- Messages that come before what they wait for, such as the event that begins their
-- process, are kept here.
ALTER TABLE dead_letters
    DROP CONSTRAINT dead_letters_status_check,
    DROP CONSTRAINT dead_letters_reason_check,
    ADD CONSTRAINT dead_letters_status_check CHECK (status IN ('parked', 'held', 'waiting', 'early', 'replay', 'replayed', 'discarded')),
    ADD CONSTRAINT dead_letters_reason_check CHECK (reason IN ('undecodable', 'too_large', 'refused', 'newer_version', 'parked', 'failed', 'crashed', 'held', 'waiting', 'early'));
DROP INDEX dead_letters_open;
CREATE INDEX dead_letters_open ON dead_letters (subscription, key_id, seq) WHERE status IN ('parked', 'held', 'waiting', 'replay', 'early');
CREATE INDEX dead_letters_early ON dead_letters (subscription, key_id) WHERE status = 'early';

COMMENT ON COLUMN dead_letters.reason IS 'undecodable: not a message of a known form; too_large: larger than the subscription takes; refused: more, or of somebody else, than it takes; newer_version: of an event that this build knows in an older version; parked: the handler said so; failed: it had its attempts; crashed: it had its attempts, or the process died of it again when it was replayed; held: it came after a message of its key that is here; waiting: it is to be tried later, and too many others waited; early: it came before the event that begins its process';
COMMENT ON COLUMN dead_letters.status IS 'parked: waits for an operator; held: waits for the messages of its key before it; waiting: is tried when due; early: waits for its process to begin, and for an operator, too, when due; replay: is handled when due, as an operator asked or its process began; replayed: has been handled; discarded: never will be';
