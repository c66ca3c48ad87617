-- tolerates: 3
-- What operators do to timers is on the same record.
ALTER TABLE outbox_actions DROP CONSTRAINT outbox_actions_action_check;
ALTER TABLE outbox_actions ADD CONSTRAINT outbox_actions_action_check
    CHECK (action IN ('retry', 'abandon', 'skip', 'purge', 'timers-move', 'timers-stop'));
COMMENT ON TABLE outbox_actions IS 'What operators did to rows of the outbox, and to timers: who, when, to which.';
