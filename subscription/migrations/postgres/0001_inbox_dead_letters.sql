-- Ids are compared byte by byte: "C" is the fastest order, and needs no other.
CREATE TABLE inbox (
    subscription text COLLATE "C" NOT NULL,
    message_id   text COLLATE "C" NOT NULL,
    -- Whole seconds: an index keeps a value that many rows have only once.
    processed_at timestamptz NOT NULL DEFAULT date_trunc('second', clock_timestamp()),
    PRIMARY KEY (subscription, message_id)
);
-- For the eviction. A BRIN index finds nothing any more once new rows are in the
-- place of removed ones, next to old rows.
CREATE INDEX inbox_processed_at ON inbox (subscription, processed_at);

CREATE TABLE inbox_attempts (
    subscription text COLLATE "C" NOT NULL,
    message_id   text COLLATE "C" NOT NULL,
    attempts     integer NOT NULL CHECK (attempts >= 0),
    crashes      integer NOT NULL DEFAULT 0 CHECK (crashes >= 0),
    run          text,
    first_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    error        text CHECK (length(error) <= 2048),
    PRIMARY KEY (subscription, message_id)
);

CREATE TABLE subscription_runs (
    subscription text COLLATE "C" NOT NULL,
    run          text COLLATE "C" NOT NULL,
    started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (subscription, run)
);

CREATE TABLE subscription_uptime (
    subscription text COLLATE "C" NOT NULL,
    up_from      timestamptz NOT NULL,
    up_until     timestamptz NOT NULL,
    PRIMARY KEY (subscription, up_from)
);

CREATE TABLE subscription_evictions (
    subscription text COLLATE "C" PRIMARY KEY,
    run          text NOT NULL,
    due_at       timestamptz NOT NULL,
    evicted      timestamptz
);

CREATE TABLE inbox_marks (
    subscription text COLLATE "C" NOT NULL,
    partition    text COLLATE "C" NOT NULL,
    source       text COLLATE "C" NOT NULL,
    settled      timestamptz,
    next         timestamptz,
    next_at      timestamptz,
    seen_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (subscription, partition, source)
);

CREATE TABLE dead_letters (
    id            uuid PRIMARY KEY,
    seq           bigint GENERATED ALWAYS AS IDENTITY,
    subscription  text COLLATE "C" NOT NULL,
    topic         text NOT NULL,
    partition_key text NOT NULL,
    key_id        text COLLATE "C" NOT NULL,
    message_id    text NOT NULL,
    message_type  text,
    body          bytea,
    headers       jsonb NOT NULL,
    error         text NOT NULL CHECK (length(error) <= 2048),
    error_type    text,
    stack         text,
    reason        text NOT NULL CHECK (reason IN ('undecodable', 'newer_version', 'parked', 'failed', 'crashed', 'held')),
    attempts      integer NOT NULL CHECK (attempts >= 0),
    first_at      timestamptz NOT NULL,
    last_at       timestamptz NOT NULL,
    status        text NOT NULL DEFAULT 'parked' CHECK (status IN ('parked', 'held', 'replay', 'replayed', 'discarded')),
    holds         boolean NOT NULL,
    replays       integer NOT NULL DEFAULT 0,
    due_at        timestamptz,
    taken_until   timestamptz
);
CREATE INDEX dead_letters_open ON dead_letters (subscription, key_id, seq) WHERE status IN ('parked', 'held', 'replay');
CREATE INDEX dead_letters_loose ON dead_letters (subscription, seq) WHERE status = 'replay' AND NOT holds;
CREATE INDEX dead_letters_message ON dead_letters (message_id);
CREATE INDEX dead_letters_seq ON dead_letters (seq);

CREATE TABLE dead_letter_actions (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor        text NOT NULL,
    action       text NOT NULL CHECK (action IN ('replay', 'discard')),
    subscription text NOT NULL,
    filter       jsonb NOT NULL,
    messages     bigint NOT NULL
);

COMMENT ON TABLE inbox IS 'What a subscription is done with: the row commits with the message''s effect, or with its parking.';
COMMENT ON COLUMN inbox.subscription IS 'name of the subscription';
COMMENT ON COLUMN inbox.message_id IS 'the message''s id; sha256:<hex> of one that has none or that does not fit';
COMMENT ON TABLE inbox_attempts IS 'Messages that are tried again. The row goes with the message''s effect, or with its parking.';
COMMENT ON COLUMN inbox_attempts.attempts IS 'how often its handler was called; one that a shutdown ended does not count';
COMMENT ON COLUMN inbox_attempts.crashes IS 'how many of these nobody saw the end of';
COMMENT ON COLUMN inbox_attempts.run IS 'the run whose handler has it now; null: none';
COMMENT ON TABLE subscription_runs IS 'Runners at work. The row goes when its runner stops; one that is left over tells of a crash.';
COMMENT ON TABLE subscription_uptime IS 'When a subscription was consuming: the age of inbox entries counts then only.';
COMMENT ON TABLE subscription_evictions IS 'Whose turn it is to remove old rows from the inbox.';
COMMENT ON COLUMN subscription_evictions.due_at IS 'of the next turn';
COMMENT ON COLUMN subscription_evictions.evicted IS 'what was processed before then is gone; null: nothing is';
COMMENT ON TABLE inbox_marks IS 'What senders say of their outboxes, by partition of the topic: the inbox keeps what they may send again.';
COMMENT ON COLUMN inbox_marks.source IS 'outbox and target';
COMMENT ON COLUMN inbox_marks.settled IS 'what the sender stored before then it never sends again, and all that it sent of it is settled here; by its clock; null: nobody knows yet';
COMMENT ON COLUMN inbox_marks.next IS 'what settled will be, once all calls of next_at have ended';
COMMENT ON COLUMN inbox_marks.next_at IS 'when the sender said so; by its clock';
COMMENT ON COLUMN inbox_marks.seen_at IS 'when the sender''s latest message came, to a minute';
COMMENT ON TABLE dead_letters IS 'Messages that a subscription could not handle. They have taken no effect there, unless status is replayed.';
COMMENT ON COLUMN dead_letters.id IS 'UUIDv7 of this row';
COMMENT ON COLUMN dead_letters.seq IS 'the order in which messages of a key were parked';
COMMENT ON COLUMN dead_letters.key_id IS 'partition_key, or sha256:<hex> of one that does not fit an index';
COMMENT ON COLUMN dead_letters.message_id IS 'as in inbox';
COMMENT ON COLUMN dead_letters.body IS 'as received; null: the message had no body at all';
COMMENT ON COLUMN dead_letters.headers IS 'the broker message''s own headers';
COMMENT ON COLUMN dead_letters.error_type IS 'the Go type of the error';
COMMENT ON COLUMN dead_letters.stack IS 'of a panic';
COMMENT ON COLUMN dead_letters.reason IS 'undecodable: not a message of a known form; newer_version: of an event that this build knows in an older version; parked: the handler said so; failed: it had its attempts; crashed: it had its attempts, and the process died of the last; held: it came after a parked message of its key';
COMMENT ON COLUMN dead_letters.attempts IS 'how often its handler ran';
COMMENT ON COLUMN dead_letters.first_at IS 'first attempt';
COMMENT ON COLUMN dead_letters.last_at IS 'last attempt';
COMMENT ON COLUMN dead_letters.status IS 'parked: waits for an operator; held: waits for the messages of its key before it; replay: is handled when due; replayed: has been; discarded: never will be';
COMMENT ON COLUMN dead_letters.holds IS 'later messages of its key wait for it';
COMMENT ON COLUMN dead_letters.replays IS 'how often its replay was asked for';
COMMENT ON COLUMN dead_letters.due_at IS 'before then it is not handled again; null: at once';
COMMENT ON COLUMN dead_letters.taken_until IS 'until then a runner is at it';
COMMENT ON TABLE dead_letter_actions IS 'What operators did to dead_letters: who, when, to which messages.';
