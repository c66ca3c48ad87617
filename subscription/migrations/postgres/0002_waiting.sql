-- tolerates: 2
-- Builds that know less don't see messages that wait here: they would handle those of the
-- same key that come later.
--
-- Messages of keys that wait can be kept here, too; and who has a dead letter in
-- hand is known by its run.
ALTER TABLE dead_letters
    DROP CONSTRAINT dead_letters_status_check,
    DROP CONSTRAINT dead_letters_reason_check,
    ADD CONSTRAINT dead_letters_status_check CHECK (status IN ('parked', 'held', 'waiting', 'replay', 'replayed', 'discarded')),
    ADD CONSTRAINT dead_letters_reason_check CHECK (reason IN ('undecodable', 'too_large', 'refused', 'newer_version', 'parked', 'failed', 'crashed', 'held', 'waiting')),
    ADD COLUMN tried integer NOT NULL DEFAULT 0,
    ADD COLUMN crashes integer NOT NULL DEFAULT 0,
    ADD COLUMN run text,
    ADD COLUMN begun boolean NOT NULL DEFAULT FALSE;
DROP INDEX dead_letters_open;
CREATE INDEX dead_letters_open ON dead_letters (subscription, key_id, seq) WHERE status IN ('parked', 'held', 'waiting', 'replay');
CREATE INDEX dead_letters_following ON dead_letters (subscription, key_id, seq) WHERE status IN ('held', 'replay') AND holds;
CREATE INDEX dead_letters_due ON dead_letters (subscription, due_at) WHERE status = 'waiting';

COMMENT ON COLUMN dead_letters.reason IS 'undecodable: not a message of a known form; too_large: larger than the subscription takes; refused: more, or of somebody else, than it takes; newer_version: of an event that this build knows in an older version; parked: the handler said so; failed: it had its attempts; crashed: it had its attempts, or the process died of it again when it was replayed; held: it came after a message of its key that is here; waiting: it is to be tried later, and too many others waited';
COMMENT ON COLUMN dead_letters.body IS 'as received; null: the message had no body at all, or a too large one';
COMMENT ON COLUMN dead_letters.status IS 'parked: waits for an operator; held: waits for the messages of its key before it; waiting: is tried when due; replay: is handled when due, as an operator asked; replayed: has been handled; discarded: never will be';
COMMENT ON COLUMN dead_letters.tried IS 'of its attempts, those before it was last to be replayed';
COMMENT ON COLUMN dead_letters.crashes IS 'attempts since then that nobody saw the end of';
COMMENT ON COLUMN dead_letters.run IS 'the run that has it in hand; null: none';
COMMENT ON COLUMN dead_letters.begun IS 'that run has called its handler';
COMMENT ON COLUMN dead_letters.taken_until IS 'until then the run has it, unless it renews that';
