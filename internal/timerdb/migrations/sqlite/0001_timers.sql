-- Messages that wait for their time. A row stays until its message is handled: whoever
-- stops it deletes it. Times are text such as 2026-01-02T03:04:05.678Z.
CREATE TABLE timers (
    id           TEXT PRIMARY KEY, -- the message's id; another one each time the timer is set
    owner        TEXT NOT NULL,    -- what has set it: an aggregate, a process
    name         TEXT NOT NULL,    -- which of the owner's timers it is
    available_at TEXT NOT NULL,    -- not before, by this computer's clock
    set_at       TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    status       TEXT NOT NULL DEFAULT 'waiting' CHECK (status IN ('waiting', 'sent')), -- sent: its message is in the outbox, or on its way
    sent_at      TEXT,             -- when its message was put into the outbox
    key          INTEGER NOT NULL, -- as in outbox_queue: timers of one key are sent in the order of their times
    message      TEXT NOT NULL CHECK (json_valid(message)), -- the row of the outbox that it becomes, but for payload
    payload      BLOB NOT NULL,    -- the exact bytes that are published
    UNIQUE (owner, name),
    CHECK ((status = 'sent') = (sent_at IS NOT NULL))
) WITHOUT ROWID;

CREATE INDEX timers_due ON timers (available_at, id) WHERE status = 'waiting';
CREATE INDEX timers_sent ON timers (sent_at) WHERE status = 'sent';
