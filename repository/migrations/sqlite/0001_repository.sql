-- Aggregates as JSON documents, and the last versions of removed ones.
CREATE TABLE documents (
    category TEXT    NOT NULL, -- <context>::<aggregate>
    id       TEXT    NOT NULL,
    version  INTEGER NOT NULL CHECK (version >= 0), -- grows by one with each save; an aggregate that is created again goes on from it; 0: nothing was saved yet
    state    TEXT,             -- what the aggregate's MarshalJSON made; null: removed
    unit     TEXT    NOT NULL DEFAULT '', -- unit of work that wrote this version, and behind blanks those whose lost commit must not follow it any more
    PRIMARY KEY (category, id)
);

-- Event-sourced aggregates: what happened to them, in the order of version and n.
--
-- The primary key is the version check: whoever saves a version second finds it
-- taken. That holds because no version is left out and no row is ever deleted.
CREATE TABLE events (
    category    TEXT    NOT NULL, -- <context>::<aggregate>
    id          TEXT    NOT NULL, -- the aggregate's identity
    version     INTEGER NOT NULL CHECK (version > 0), -- number of the save
    n           INTEGER NOT NULL CHECK (n > 0),       -- position within the save
    message_id  TEXT,             -- the event's id, as in the outbox
    type        TEXT    NOT NULL, -- <Context>.<Event>.v<version>; waybill.saved: a save without events; waybill.removed: what follows is another life; waybill.refused: nothing yet
    data        TEXT,             -- the bytes that the outbox has
    metadata    TEXT,             -- where the event came from: correlation, causation, tenant, trace, extensions
    occurred_at TEXT    NOT NULL, -- such as 2026-01-02T03:04:05.678Z
    unit        TEXT    NOT NULL DEFAULT '', -- unit of work that wrote it; of waybill.refused, behind blanks: those whose lost commit must not write this version any more
    PRIMARY KEY (category, id, version, n),
    CHECK ((message_id IS NULL) = (data IS NULL))
);
