-- tolerates: 4
-- Builds that know less take away what a publishing transaction of another process has in
-- hand once that has died, and publish it a second time: they don't read how it ended.
--
-- What operators do to timers is on the same record.
ALTER TABLE outbox_actions DROP CONSTRAINT outbox_actions_action_check;
ALTER TABLE outbox_actions ADD CONSTRAINT outbox_actions_action_check
    CHECK (action IN ('retry', 'abandon', 'skip', 'purge', 'timers-move', 'timers-stop'));
COMMENT ON TABLE outbox_actions IS 'What operators did to rows of the outbox, and to timers: who, when, to which.';
