-- tolerates: 3
-- Builds that know less don't note when a dead letter was given up: it would be removed by
-- when it was last tried.
--
-- Dead letters that are over go after a while, and subscriptions that are no more are
-- retired. SQLite changes no CHECK: the record of actions is made anew.
ALTER TABLE dead_letters ADD COLUMN discarded_at TEXT; -- when an operator gave it up; null: nobody did
CREATE INDEX dead_letters_over ON dead_letters (COALESCE(discarded_at, last_at)) WHERE status IN ('replayed', 'discarded');

ALTER TABLE dead_letter_actions RENAME TO dead_letter_actions_before;
CREATE TABLE dead_letter_actions (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    at           TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    actor        TEXT NOT NULL,
    action       TEXT NOT NULL CHECK (action IN ('replay', 'discard', 'purge', 'retire')),
    subscription TEXT NOT NULL, -- empty: of several
    filter       TEXT NOT NULL CHECK (json_valid(filter)),
    messages     INTEGER NOT NULL -- of a retired subscription, all rows
);
INSERT INTO dead_letter_actions SELECT id, at, actor, action, subscription, filter, messages FROM dead_letter_actions_before;
DROP TABLE dead_letter_actions_before;

-- What is done once per interval, by one process at a time.
CREATE TABLE subscription_jobs (
    name   TEXT PRIMARY KEY NOT NULL,
    due_at TEXT NOT NULL -- of the next turn
) WITHOUT ROWID;
