-- tolerates: 5
-- Who has copied earlier events for a broker that joins is on the same record.
ALTER TABLE outbox_actions DROP CONSTRAINT outbox_actions_action_check;
ALTER TABLE outbox_actions ADD CONSTRAINT outbox_actions_action_check
    CHECK (action IN ('retry', 'abandon', 'skip', 'purge', 'timers-move', 'timers-stop', 'processes-end',
        'projections-rebuild', 'projections-switch', 'projections-skip', 'projections-retire', 'history-import', 'history-republish', 'database-accept', 'backfill'));
COMMENT ON TABLE outbox_actions IS 'What operators did to rows of the outbox, to timers, processes, projections, the history, the database and brokers that join: who, when, to which.';
