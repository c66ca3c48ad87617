CREATE TABLE processes (
    process       text COLLATE "C" NOT NULL,
    id            text COLLATE "C" NOT NULL,
    version       bigint      NOT NULL CHECK (version >= 0),
    state         json,
    state_version integer     NOT NULL DEFAULT 1,
    status        text        NOT NULL CHECK (status IN ('awaited', 'running', 'ended')),
    early         boolean     NOT NULL DEFAULT FALSE,
    began_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at      timestamptz,
    forget_at     timestamptz,
    heard         json        NOT NULL DEFAULT '[]',
    PRIMARY KEY (process, id),
    CHECK (status = 'awaited' OR state IS NOT NULL),
    CHECK ((status = 'ended') = (ended_at IS NOT NULL)),
    CHECK ((status = 'running') = (forget_at IS NULL))
) WITH (fillfactor = 80);
CREATE INDEX processes_running ON processes (process, began_at, id) WHERE status = 'running';
CREATE INDEX processes_forgotten ON processes (forget_at) INCLUDE (process, status) WHERE status <> 'running';

COMMENT ON TABLE processes IS 'Processes: what they remember, and whether they are over.';
COMMENT ON COLUMN processes.process IS 'context and process, as in library.lending: its dead letters are under this name';
COMMENT ON COLUMN processes.id IS 'what its messages have in common';
COMMENT ON COLUMN processes.version IS 'how many messages it has heard; an end by an operator counts as one';
COMMENT ON COLUMN processes.status IS 'awaited: messages came before the event that begins it, and wait in dead_letters';
COMMENT ON COLUMN processes.early IS 'messages of it may be set aside: whoever handles one looks whether it is its turn';
COMMENT ON COLUMN processes.began_at IS 'when it began; of an awaited one, when its first message came';
COMMENT ON COLUMN processes.last_at IS 'when it last heard something';
COMMENT ON COLUMN processes.forget_at IS 'when the row may go; null: not while it runs';
COMMENT ON COLUMN processes.heard IS 'its last 20 messages: at, type, id';
