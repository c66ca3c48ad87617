-- state is json, not jsonb: the document is the aggregate's own, and comes back
-- as the bytes that its MarshalJSON made. jsonb would sort the keys, rewrite the
-- numbers, refuse \u0000 and take half as much room again. Operators such as ->>
-- read json too; index what you search by as an expression, or keep the
-- aggregate in tables of its own (repository.Mapped).
CREATE TABLE documents (
    category text   NOT NULL,
    id       text   NOT NULL,
    version  bigint NOT NULL CHECK (version >= 0),
    state    json,
    unit     text   NOT NULL DEFAULT '',
    PRIMARY KEY (category, id)
);

COMMENT ON TABLE documents IS 'Aggregates as JSON documents, and the last versions of removed ones.';
COMMENT ON COLUMN documents.category IS '<context>::<aggregate>';
COMMENT ON COLUMN documents.version IS 'grows by one with each save; an aggregate that is created again goes on from it; 0: nothing was saved yet';
COMMENT ON COLUMN documents.state IS 'what the aggregate''s MarshalJSON made; null: removed';
COMMENT ON COLUMN documents.unit IS 'unit of work that wrote this version, and behind blanks those whose lost commit must not follow it any more';

-- The primary key is the version check: whoever saves a version second finds it
-- taken. That holds because no version is left out and no row is ever deleted.
CREATE TABLE events (
    category    text        NOT NULL,
    id          text        NOT NULL,
    version     bigint      NOT NULL CHECK (version > 0),
    n           integer     NOT NULL CHECK (n > 0),
    message_id  uuid,
    type        text        NOT NULL,
    data        json,
    metadata    json,
    occurred_at timestamptz NOT NULL,
    unit        text        NOT NULL DEFAULT '',
    PRIMARY KEY (category, id, version, n),
    CHECK ((message_id IS NULL) = (data IS NULL))
);

COMMENT ON TABLE events IS 'Event-sourced aggregates: what happened to them, in the order of version and n.';
COMMENT ON COLUMN events.category IS '<context>::<aggregate>';
COMMENT ON COLUMN events.id IS 'the aggregate''s identity';
COMMENT ON COLUMN events.version IS 'number of the save';
COMMENT ON COLUMN events.n IS 'position within the save, from 1';
COMMENT ON COLUMN events.message_id IS 'the event''s id, as in the outbox';
COMMENT ON COLUMN events.type IS '<Context>.<Event>.v<version>; waybill.saved: a save without events; waybill.removed: what follows is another life; waybill.refused: nothing yet';
COMMENT ON COLUMN events.data IS 'the bytes that the outbox has';
COMMENT ON COLUMN events.metadata IS 'where the event came from: correlation, causation, tenant, trace, extensions';
COMMENT ON COLUMN events.unit IS 'unit of work that wrote it; of waybill.refused, behind blanks: those whose lost commit must not write this version any more';
