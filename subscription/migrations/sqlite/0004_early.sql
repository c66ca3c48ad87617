-- tolerates: 4
-- Builds that know less don't see messages that came early: they would handle those of the
-- same key that come later.
--
-- Messages that come before what they wait for, such as the event that begins their
-- process, are kept here. SQLite changes no CHECK: the table is made anew.
ALTER TABLE dead_letters RENAME TO dead_letters_before;
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
    reason        TEXT NOT NULL CHECK (reason IN ('undecodable', 'too_large', 'refused', 'newer_version', 'parked', 'failed', 'crashed', 'held', 'waiting', 'early')),
    attempts      INTEGER NOT NULL CHECK (attempts >= 0),
    first_at      TEXT NOT NULL,
    last_at       TEXT NOT NULL,
    status        TEXT NOT NULL DEFAULT 'parked' CHECK (status IN ('parked', 'held', 'waiting', 'early', 'replay', 'replayed', 'discarded')),
    holds         INTEGER NOT NULL,
    replays       INTEGER NOT NULL DEFAULT 0,
    due_at        TEXT,
    taken_until   TEXT,          -- until then the run has it, unless it renews that
    tried         INTEGER NOT NULL DEFAULT 0, -- of its attempts, those before it was last to be replayed
    crashes       INTEGER NOT NULL DEFAULT 0, -- attempts since then that nobody saw the end of
    run           TEXT,          -- the run that has it in hand
    begun         INTEGER NOT NULL DEFAULT 0, -- that run has called its handler
    discarded_at  TEXT           -- when an operator gave it up; null: nobody did
);
INSERT INTO dead_letters (seq, id, subscription, topic, partition_key, key_id, message_id, message_type, body, headers, error, error_type, stack,
    reason, attempts, first_at, last_at, status, holds, replays, due_at, taken_until, tried, crashes, run, begun, discarded_at)
SELECT seq, id, subscription, topic, partition_key, key_id, message_id, message_type, body, headers, error, error_type, stack,
    reason, attempts, first_at, last_at, status, holds, replays, due_at, taken_until, tried, crashes, run, begun, discarded_at FROM dead_letters_before;
DROP TABLE dead_letters_before;
CREATE INDEX dead_letters_open ON dead_letters (subscription, key_id, seq) WHERE status IN ('parked', 'held', 'waiting', 'replay', 'early');
CREATE INDEX dead_letters_following ON dead_letters (subscription, key_id, seq) WHERE status IN ('held', 'replay') AND holds;
CREATE INDEX dead_letters_due ON dead_letters (subscription, due_at) WHERE status = 'waiting';
CREATE INDEX dead_letters_loose ON dead_letters (subscription, seq) WHERE status = 'replay' AND NOT holds;
CREATE INDEX dead_letters_message ON dead_letters (message_id);
CREATE INDEX dead_letters_over ON dead_letters (COALESCE(discarded_at, last_at)) WHERE status IN ('replayed', 'discarded');
CREATE INDEX dead_letters_early ON dead_letters (subscription, key_id) WHERE status = 'early';
