-- tolerates: 1
-- Builds that know less stop at a timer whose message can't be read, and list none that is set aside.
--
-- A timer whose message can't be sent is set aside: the others of its broker go on.
CREATE TABLE timers_new (
    id           TEXT PRIMARY KEY, -- the message's id; another one each time the timer is set
    owner        TEXT NOT NULL,    -- what has set it: an aggregate, a process
    name         TEXT NOT NULL,    -- which of the owner's timers it is
    available_at TEXT NOT NULL,    -- not before, by this computer's clock
    set_at       TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    status       TEXT NOT NULL DEFAULT 'waiting' CHECK (status IN ('waiting', 'sent', 'broken')), -- sent: its message is in the outbox, or on its way; broken: it can't be sent, and an operator decides
    sent_at      TEXT,             -- when its message was put into the outbox
    key          INTEGER NOT NULL, -- as in outbox_queue: timers of one key are sent in the order of their times
    message      TEXT NOT NULL CHECK (json_valid(message)), -- the row of the outbox that it becomes, but for payload
    payload      BLOB NOT NULL,    -- the exact bytes that are published
    error        TEXT CHECK (length(error) <= 2048), -- why its message can't be sent, while it is broken
    UNIQUE (owner, name),
    CHECK ((status = 'sent') = (sent_at IS NOT NULL))
) WITHOUT ROWID;
INSERT INTO timers_new (id, owner, name, available_at, set_at, status, sent_at, key, message, payload)
SELECT id, owner, name, available_at, set_at, status, sent_at, key, message, payload FROM timers;
DROP TABLE timers;
ALTER TABLE timers_new RENAME TO timers;
CREATE INDEX timers_due ON timers ((coalesce(message ->> 'target', '')), available_at, id) WHERE status = 'waiting';
CREATE INDEX timers_sent ON timers ((coalesce(message ->> 'target', '')), sent_at) WHERE status = 'sent';
CREATE INDEX timers_at ON timers (available_at, id);
CREATE INDEX timers_broken ON timers (available_at, id) WHERE status = 'broken';
