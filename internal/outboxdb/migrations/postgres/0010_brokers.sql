-- tolerates: 5
-- Builds that know less don't say which broker they publish to.
ALTER TABLE outbox_members ADD COLUMN broker text;
COMMENT ON COLUMN outbox_members.broker IS 'which broker it publishes to, as JSON: system, cluster and topic_prefix; null: not known';

-- Who has changed a context's brokers is on the same record.
ALTER TABLE outbox_actions DROP CONSTRAINT outbox_actions_action_check;
ALTER TABLE outbox_actions ADD CONSTRAINT outbox_actions_action_check
    CHECK (action IN ('retry', 'abandon', 'skip', 'purge', 'timers-move', 'timers-stop', 'processes-end',
        'projections-rebuild', 'projections-switch', 'projections-skip', 'projections-retire', 'history-import', 'history-republish', 'database-accept', 'backfill', 'targets-set'));
COMMENT ON TABLE outbox_actions IS 'What operators did to rows of the outbox, to timers, processes, projections, the history, the database and the brokers of contexts: who, when, to which.';
