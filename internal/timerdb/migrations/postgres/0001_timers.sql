-- A row comes, is sent and goes: dead rows are cleared away before looks have to pass
-- many of them.
CREATE TABLE timers (
    id           uuid PRIMARY KEY,
    owner        text NOT NULL,
    name         text NOT NULL,
    available_at timestamptz NOT NULL,
    set_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    status       text NOT NULL DEFAULT 'waiting' CHECK (status IN ('waiting', 'sent')),
    sent_at      timestamptz,
    key          bigint NOT NULL,
    message      json NOT NULL,
    payload      bytea NOT NULL,
    UNIQUE (owner, name),
    CONSTRAINT timers_sent_has_a_time CHECK ((status = 'sent') = (sent_at IS NOT NULL))
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_analyze_scale_factor = 0.5);

CREATE INDEX timers_due ON timers (available_at, id) WHERE status = 'waiting';
CREATE INDEX timers_sent ON timers (sent_at) WHERE status = 'sent';

COMMENT ON TABLE timers IS 'Messages that wait for their time. A row stays until its message is handled: whoever stops it deletes it.';
COMMENT ON COLUMN timers.id IS 'the message''s id; another one each time the timer is set';
COMMENT ON COLUMN timers.owner IS 'what has set it: an aggregate, a process';
COMMENT ON COLUMN timers.name IS 'which of the owner''s timers it is';
COMMENT ON COLUMN timers.available_at IS 'not before, by this database''s clock';
COMMENT ON COLUMN timers.set_at IS 'when it was set, by this database''s clock';
COMMENT ON COLUMN timers.status IS 'waiting -> sent (its message is in the outbox, or on its way)';
COMMENT ON COLUMN timers.sent_at IS 'when its message was put into the outbox';
COMMENT ON COLUMN timers.key IS 'as in outbox_queue: timers of one key are sent in the order of their times';
COMMENT ON COLUMN timers.message IS 'the row of the outbox that it becomes, but for payload';
COMMENT ON COLUMN timers.payload IS 'the exact bytes that are published';
