-- tolerates: 5
-- Builds that know less don't say which broker they publish to.
ALTER TABLE outbox_members ADD COLUMN broker TEXT;

-- Who has changed a context's brokers is on the same record.
CREATE TABLE outbox_actions_new (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    at     TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    actor  TEXT NOT NULL,
    action TEXT NOT NULL CHECK (action IN ('retry', 'abandon', 'skip', 'purge', 'timers-move', 'timers-stop', 'processes-end',
        'projections-rebuild', 'projections-switch', 'projections-skip', 'projections-retire', 'history-import', 'history-republish', 'database-accept', 'backfill', 'targets-set')),
    filter TEXT NOT NULL CHECK (json_valid(filter)),
    rows   INTEGER NOT NULL
);
INSERT INTO outbox_actions_new SELECT id, at, actor, action, filter, rows FROM outbox_actions;
DROP TABLE outbox_actions;
ALTER TABLE outbox_actions_new RENAME TO outbox_actions;
