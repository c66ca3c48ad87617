-- One sequence for both tables of events: a position says where an event is among all.
-- Its cache stays 1. A transaction draws behind the lock of its aggregate's row, so that
-- positions of one aggregate are in the order of its versions.
CREATE SEQUENCE IF NOT EXISTS history_position AS bigint CACHE 1;

-- The widths are in this order so that no row has padding.
CREATE TABLE history (
    position    bigint      PRIMARY KEY DEFAULT nextval('history_position'),
    version     bigint      NOT NULL,
    occurred_at timestamptz NOT NULL,
    n           integer     NOT NULL,
    message_id  uuid        NOT NULL UNIQUE,
    category    text        COLLATE "C" NOT NULL,
    id          text        COLLATE "C" NOT NULL,
    type        text        NOT NULL,
    data        json        NOT NULL,
    metadata    json
);

CREATE INDEX history_aggregate ON history (category, id, version, n);

COMMENT ON TABLE history IS 'Events that are kept, beside those in the table events, which event-sourced aggregates are made of. No row is ever changed or removed.';
COMMENT ON COLUMN history.position IS 'where it is among all events of both tables; there are gaps; below 0: imported';
COMMENT ON COLUMN history.version IS 'the aggregate''s, after the save; of a foreign event 0 if its sender doesn''t say';
COMMENT ON COLUMN history.n IS 'place within the save, from 1';
COMMENT ON COLUMN history.message_id IS 'the event''s id, as in the outbox; of a foreign event whose id is no UUID, one that is made of it';
COMMENT ON COLUMN history.category IS '<context>::<aggregate>';
COMMENT ON COLUMN history.id IS 'the aggregate''s identity';
COMMENT ON COLUMN history.type IS '<Context>.<Event>.v<version>';
COMMENT ON COLUMN history.data IS 'the bytes that the outbox has';
COMMENT ON COLUMN history.metadata IS 'where the event came from, and what else the other columns don''t say';
