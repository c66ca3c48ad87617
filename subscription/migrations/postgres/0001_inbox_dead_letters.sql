-- Ids are compared byte by byte: "C" is the fastest order, and needs no other.
CREATE TABLE inbox (
    subscription text COLLATE "C" NOT NULL,
    message_id   text COLLATE "C" NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (subscription, message_id)
);

CREATE TABLE dead_letters (
    id            uuid PRIMARY KEY,
    subscription  text NOT NULL,
    topic         text NOT NULL,
    partition_key text NOT NULL,
    message_id    text NOT NULL,
    message_type  text,
    body          bytea,
    headers       jsonb NOT NULL,
    error         text NOT NULL CHECK (length(error) <= 2048),
    reason        text NOT NULL,
    attempts      integer NOT NULL CHECK (attempts >= 0),
    first_at      timestamptz NOT NULL,
    last_at       timestamptz NOT NULL,
    status        text NOT NULL DEFAULT 'parked'
);

COMMENT ON TABLE inbox IS 'What a subscription is done with: the row commits with the message''s effect, or with its parking.';
COMMENT ON COLUMN inbox.subscription IS 'name of the subscription';
COMMENT ON COLUMN inbox.message_id IS 'the message''s id; sha256:<hex> of one that has none or that does not fit';
COMMENT ON TABLE dead_letters IS 'Messages that a subscription could not handle. They have taken no effect there.';
COMMENT ON COLUMN dead_letters.id IS 'UUIDv7 of this row';
COMMENT ON COLUMN dead_letters.message_id IS 'as in inbox';
COMMENT ON COLUMN dead_letters.body IS 'as received; null: the message had no body at all';
COMMENT ON COLUMN dead_letters.headers IS 'the broker message''s own headers';
COMMENT ON COLUMN dead_letters.reason IS 'undecodable: not a message of a known form; newer_version: of an event that this build knows in an older version; parked: the handler said so';
COMMENT ON COLUMN dead_letters.attempts IS 'how often its handler ran before it was parked';
COMMENT ON COLUMN dead_letters.first_at IS 'first attempt';
COMMENT ON COLUMN dead_letters.last_at IS 'last attempt';
