-- tolerates: 5
-- Builds that know less may take publishing transactions for nothing, as those before 4 do.
--
-- What operators do to processes is on the same record.
ALTER TABLE outbox_actions DROP CONSTRAINT outbox_actions_action_check;
ALTER TABLE outbox_actions ADD CONSTRAINT outbox_actions_action_check
    CHECK (action IN ('retry', 'abandon', 'skip', 'purge', 'timers-move', 'timers-stop', 'processes-end'));
COMMENT ON TABLE outbox_actions IS 'What operators did to rows of the outbox, to timers and to processes: who, when, to which.';
