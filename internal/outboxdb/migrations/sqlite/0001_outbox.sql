-- Times are text such as 2026-01-02T03:04:05.678Z, which sorts in order.
CREATE TABLE outbox (
    seq               INTEGER PRIMARY KEY AUTOINCREMENT, -- insertion order, which is commit order per aggregate; never used twice
    id                TEXT NOT NULL,    -- UUIDv7 of this row
    message_id        TEXT NOT NULL,    -- the event's id: equal in all its rows and on every attempt
    target_broker     TEXT NOT NULL,    -- which broker this row is for
    stream            TEXT NOT NULL,    -- <context>::<aggregate>-<id>
    stream_category   TEXT NOT NULL,    -- <context>::<aggregate>
    topic             TEXT,             -- without the broker's prefix; null: the category with . for ::
    partition_key     TEXT NOT NULL,    -- rows of one key and target broker are published in the order of seq
    partition         INTEGER NOT NULL, -- hash bucket of partition_key; its owner is in outbox_partitions
    message_type      TEXT NOT NULL,    -- <Context>.<Event>.v<version>
    aggregate_type    TEXT NOT NULL,
    aggregate_id      TEXT NOT NULL,
    aggregate_version INTEGER NOT NULL,
    payload           BLOB NOT NULL,    -- the exact bytes that are published
    content_type      TEXT NOT NULL,
    cloud_event       TEXT,             -- attributes of a CloudEvent of which payload is the data, as JSON; null: payload is all
    correlation_id    TEXT,
    causation_id      TEXT,
    tenant_id         TEXT,             -- as it leaves: null where the target's envelope does not name the tenant
    traceparent       TEXT,
    priority          INTEGER NOT NULL DEFAULT 0, -- larger first between keys, never within a key
    status            TEXT NOT NULL DEFAULT 'pending'
        CHECK (status IN ('pending', 'processing', 'published', 'failed', 'abandoned')),
    attempts          INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0), -- claims that were spent; those of an outage are given back
    max_attempts      INTEGER NOT NULL DEFAULT 5, -- the processor's setting at the last claim
    available_at      TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), -- not before
    last_attempt_at   TEXT,
    last_error        TEXT CHECK (length(last_error) <= 2048), -- the broker's words at the last failure
    failure_class     TEXT
        CHECK (failure_class IN ('unavailable', 'transient', 'unknown', 'permanent', 'crash')),
    locked_by         TEXT,             -- worker that has claimed the row
    locked_until      TEXT,             -- its lease at the claim, for people; outbox_partitions decides
    fence             INTEGER,          -- number of the lease under which the row was claimed
    claim_id          INTEGER,          -- number of the claim; whoever writes back must name it
    losses            INTEGER NOT NULL DEFAULT 0, -- claims in a row that nobody settled
    held              INTEGER NOT NULL DEFAULT 0, -- abandoned, and the rows of its key behind it wait
    occurred_at       TEXT NOT NULL,    -- when the event was raised
    created_at        TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    published_at      TEXT,
    expires_at        TEXT,             -- from when on housekeeping may remove the row
    finished_at       TEXT,             -- published or abandoned; null: still counts for the order of its key
    UNIQUE (message_id, target_broker),
    CHECK ((status = 'processing') = (claim_id IS NOT NULL)),
    CHECK ((status = 'processing') = (locked_by IS NOT NULL))
);

CREATE INDEX outbox_unfinished ON outbox (target_broker, partition, priority, seq) WHERE finished_at IS NULL;

-- Whether there is any with a priority; most of the time there is none.
CREATE INDEX outbox_prioritized ON outbox (target_broker, priority) WHERE finished_at IS NULL AND priority <> 0;

-- What is before a row with a priority in its key.
CREATE INDEX outbox_keys ON outbox (partition_key, seq) WHERE finished_at IS NULL;

-- Held rows: few, and looked for by operators and signals.
CREATE INDEX outbox_held ON outbox (target_broker) WHERE held;

-- Abandoned rows that hold nothing: signals and housekeeping find them among
-- any number of published ones.
CREATE INDEX outbox_abandoned ON outbox (seq) WHERE finished_at IS NOT NULL AND published_at IS NULL;

CREATE TRIGGER outbox_life_cycle BEFORE UPDATE OF status ON outbox FOR EACH ROW
    WHEN OLD.status <> NEW.status AND (OLD.status || '>' || NEW.status) NOT IN (
        'pending>processing', 'pending>abandoned',
        'processing>published', 'processing>failed', 'processing>abandoned', 'processing>pending',
        'failed>pending', 'failed>abandoned',
        'abandoned>pending')
BEGIN
    SELECT RAISE(ABORT, 'outbox: a row cannot go from its status to that one');
END;

-- Which worker publishes which partition, and until when. The one place that decides.
CREATE TABLE outbox_partitions (
    target_broker TEXT NOT NULL,
    partition     INTEGER NOT NULL,
    locked_by     TEXT,
    fence         INTEGER NOT NULL DEFAULT 0,
    locked_until  TEXT,
    claimed_below INTEGER NOT NULL DEFAULT 0, -- no row of this partition from this seq on was ever claimed
    changes       INTEGER NOT NULL DEFAULT 0, -- how often an operator changed rows of this partition
    PRIMARY KEY (target_broker, partition)
) WITHOUT ROWID;

-- Workers that are alive; a worker's share is the partitions divided by their number.
CREATE TABLE outbox_workers (
    worker        TEXT NOT NULL,
    target_broker TEXT NOT NULL,
    seen_until    TEXT NOT NULL,
    PRIMARY KEY (worker, target_broker)
) WITHOUT ROWID;

-- Properties of this database, such as the number of partitions.
CREATE TABLE outbox_settings (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

-- Housekeeping that one process at a time does.
CREATE TABLE outbox_jobs (
    name   TEXT PRIMARY KEY,
    due_at TEXT NOT NULL
) WITHOUT ROWID;

-- What operators did to rows of outbox: who, when, to which.
CREATE TABLE outbox_actions (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    at     TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    actor  TEXT NOT NULL,
    action TEXT NOT NULL CHECK (action IN ('retry', 'abandon', 'skip', 'purge')),
    filter TEXT NOT NULL CHECK (json_valid(filter)),
    rows   INTEGER NOT NULL
);

-- How many rows were ever published, also those that are removed by now.
CREATE TABLE outbox_published (
    target_broker TEXT NOT NULL,
    slot          INTEGER NOT NULL,
    n             INTEGER NOT NULL,
    retries       INTEGER NOT NULL, -- attempts at these rows beyond the first of each
    PRIMARY KEY (target_broker, slot)
) WITHOUT ROWID;

CREATE TRIGGER outbox_count_published AFTER UPDATE OF status ON outbox FOR EACH ROW
    WHEN NEW.status = 'published' AND OLD.status <> 'published'
BEGIN
    INSERT INTO outbox_published (target_broker, slot, n, retries) VALUES (NEW.target_broker, 0, 1, NEW.attempts - NEW.losses - 1)
        ON CONFLICT (target_broker, slot) DO UPDATE SET n = n + 1, retries = retries + excluded.retries;
END;

-- Numbers that are never used twice: fence and claim.
CREATE TABLE outbox_sequences (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;

INSERT INTO outbox_sequences (name, value) VALUES ('fence', 0), ('claim', 0);
