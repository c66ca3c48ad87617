-- tolerates: 5
-- Builds that know less don't ask whether the database is a copy, and believe what they
-- settled last after a crash of the server, as they always did.
--
-- That an operator accepts a database in the place of another is on the same record.
ALTER TABLE outbox_actions DROP CONSTRAINT outbox_actions_action_check;
ALTER TABLE outbox_actions ADD CONSTRAINT outbox_actions_action_check
    CHECK (action IN ('retry', 'abandon', 'skip', 'purge', 'timers-move', 'timers-stop', 'processes-end',
        'projections-rebuild', 'projections-switch', 'projections-skip', 'projections-retire', 'history-import', 'history-republish', 'database-accept'));
COMMENT ON TABLE outbox_actions IS 'What operators did to rows of the outbox, to timers, processes, projections, the history and the database: who, when, to which.';

-- Not logged: a crash of the server empties it, and a standby that is promoted has it empty.
CREATE UNLOGGED TABLE outbox_uncrashed (
    member bigint PRIMARY KEY REFERENCES outbox_members ON DELETE CASCADE
);
INSERT INTO outbox_uncrashed SELECT member FROM outbox_members;
COMMENT ON TABLE outbox_uncrashed IS 'Members that joined since the server''s last crash: what the others settled last may be undone.';
COMMENT ON COLUMN outbox_uncrashed.member IS 'of outbox_members';
