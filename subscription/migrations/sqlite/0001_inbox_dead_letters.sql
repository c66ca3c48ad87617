CREATE TABLE inbox (
    subscription TEXT NOT NULL,
    message_id   TEXT NOT NULL,
    processed_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    PRIMARY KEY (subscription, message_id)
) WITHOUT ROWID;
CREATE INDEX inbox_processed_at ON inbox (subscription, processed_at);

-- Messages that are tried again. The row goes with the message's effect, or with its parking.
CREATE TABLE inbox_attempts (
    subscription TEXT NOT NULL,
    message_id   TEXT NOT NULL,
    attempts     INTEGER NOT NULL CHECK (attempts >= 0),
    crashes      INTEGER NOT NULL DEFAULT 0 CHECK (crashes >= 0),
    run          TEXT,
    first_at     TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    last_at      TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    error        TEXT CHECK (length(error) <= 2048),
    PRIMARY KEY (subscription, message_id)
) WITHOUT ROWID;

-- Runners at work. The row goes when its runner stops; one that is left over tells of a crash.
CREATE TABLE subscription_runs (
    subscription TEXT NOT NULL,
    run          TEXT NOT NULL,
    started_at   TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    seen_at      TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    PRIMARY KEY (subscription, run)
) WITHOUT ROWID;

-- When a subscription was consuming: the age of inbox entries counts then only.
CREATE TABLE subscription_uptime (
    subscription TEXT NOT NULL,
    up_from      TEXT NOT NULL,
    up_until     TEXT NOT NULL,
    PRIMARY KEY (subscription, up_from)
) WITHOUT ROWID;

-- Whose turn it is to remove old rows from the inbox.
CREATE TABLE subscription_evictions (
    subscription TEXT PRIMARY KEY NOT NULL,
    run          TEXT NOT NULL,
    due_at       TEXT NOT NULL, -- of the next turn
    evicted      TEXT           -- what was processed before then is gone; null: nothing is
) WITHOUT ROWID;

-- What senders say of their outboxes, by partition of the topic: the inbox keeps
-- what they may send again.
CREATE TABLE inbox_marks (
    subscription TEXT NOT NULL,
    partition    TEXT NOT NULL,
    source       TEXT NOT NULL, -- outbox and target
    settled      TEXT, -- what the sender stored before then it never sends again, and all that it sent of it is settled here; by its clock
    next         TEXT, -- what settled will be, once all calls of next_at have ended
    next_at      TEXT, -- when the sender said so; by its clock
    seen_at      TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    PRIMARY KEY (subscription, partition, source)
) WITHOUT ROWID;

CREATE TABLE dead_letters (
    seq           INTEGER PRIMARY KEY AUTOINCREMENT,
    id            TEXT NOT NULL UNIQUE,
    subscription  TEXT NOT NULL,
    topic         TEXT NOT NULL,
    partition_key TEXT NOT NULL,
    key_id        TEXT NOT NULL, -- partition_key, or its hash if that is long
    message_id    TEXT NOT NULL, -- as in inbox
    message_type  TEXT,
    body          BLOB,          -- as received; null: the message had no body at all
    headers       TEXT NOT NULL CHECK (json_valid(headers)),
    error         TEXT NOT NULL CHECK (length(error) <= 2048),
    error_type    TEXT,
    stack         TEXT,
    reason        TEXT NOT NULL CHECK (reason IN ('undecodable', 'newer_version', 'parked', 'failed', 'crashed', 'held')),
    attempts      INTEGER NOT NULL CHECK (attempts >= 0),
    first_at      TEXT NOT NULL,
    last_at       TEXT NOT NULL,
    status        TEXT NOT NULL DEFAULT 'parked' CHECK (status IN ('parked', 'held', 'replay', 'replayed', 'discarded')),
    holds         INTEGER NOT NULL,
    replays       INTEGER NOT NULL DEFAULT 0,
    due_at        TEXT,
    taken_until   TEXT
);
CREATE INDEX dead_letters_open ON dead_letters (subscription, key_id, seq) WHERE status IN ('parked', 'held', 'replay');
CREATE INDEX dead_letters_loose ON dead_letters (subscription, seq) WHERE status = 'replay' AND NOT holds;
CREATE INDEX dead_letters_message ON dead_letters (message_id);

CREATE TABLE dead_letter_actions (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    at           TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    actor        TEXT NOT NULL,
    action       TEXT NOT NULL CHECK (action IN ('replay', 'discard')),
    subscription TEXT NOT NULL,
    filter       TEXT NOT NULL CHECK (json_valid(filter)),
    messages     INTEGER NOT NULL
);
