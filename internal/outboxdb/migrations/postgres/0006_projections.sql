-- tolerates: 5
-- What operators do to projections is on the same record.
ALTER TABLE outbox_actions DROP CONSTRAINT outbox_actions_action_check;
ALTER TABLE outbox_actions ADD CONSTRAINT outbox_actions_action_check
    CHECK (action IN ('retry', 'abandon', 'skip', 'purge', 'timers-move', 'timers-stop', 'processes-end',
        'projections-rebuild', 'projections-switch', 'projections-skip', 'projections-retire'));
COMMENT ON TABLE outbox_actions IS 'What operators did to rows of the outbox, to timers, processes and projections: who, when, to which.';
