-- Processes: what they remember, and whether they are over.
CREATE TABLE processes (
    process       TEXT NOT NULL, -- context and process, as in library.lending: its dead letters are under this name
    id            TEXT NOT NULL, -- what its messages have in common
    version       INTEGER NOT NULL CHECK (version >= 0), -- how many messages it has heard; an end by an operator counts as one
    state         TEXT CHECK (json_valid(state)),
    state_version INTEGER NOT NULL DEFAULT 1,
    status        TEXT NOT NULL CHECK (status IN ('awaited', 'running', 'ended')), -- awaited: messages came before the event that begins it, and wait in dead_letters
    early         INTEGER NOT NULL DEFAULT 0, -- messages of it may be set aside: whoever handles one looks whether it is its turn
    began_at      TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), -- of an awaited one, when its first message came
    last_at       TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    ended_at      TEXT,
    forget_at     TEXT, -- when the row may go; null: not while it runs
    heard         TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(heard)), -- its last 20 messages: at, type, id
    PRIMARY KEY (process, id),
    CHECK (status = 'awaited' OR state IS NOT NULL),
    CHECK ((status = 'ended') = (ended_at IS NOT NULL)),
    CHECK ((status = 'running') = (forget_at IS NULL))
) WITHOUT ROWID;
CREATE INDEX processes_running ON processes (process, began_at, id) WHERE status = 'running';
CREATE INDEX processes_forgotten ON processes (forget_at, status) WHERE status <> 'running';
