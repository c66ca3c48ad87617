CREATE TABLE inbox (
    subscription TEXT NOT NULL,
    message_id   TEXT NOT NULL,
    processed_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    PRIMARY KEY (subscription, message_id)
) WITHOUT ROWID;

CREATE TABLE dead_letters (
    id            TEXT NOT NULL PRIMARY KEY,
    subscription  TEXT NOT NULL,
    topic         TEXT NOT NULL,
    partition_key TEXT NOT NULL,
    message_id    TEXT NOT NULL, -- as in inbox
    message_type  TEXT,
    body          BLOB,          -- as received; null: the message had no body at all
    headers       TEXT NOT NULL CHECK (json_valid(headers)),
    error         TEXT NOT NULL CHECK (length(error) <= 2048),
    reason        TEXT NOT NULL,
    attempts      INTEGER NOT NULL CHECK (attempts >= 0),
    first_at      TEXT NOT NULL,
    last_at       TEXT NOT NULL,
    status        TEXT NOT NULL DEFAULT 'parked'
);
