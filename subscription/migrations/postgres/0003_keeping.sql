-- tolerates: 3
-- Builds that know less don't note when a dead letter was given up: it would be removed by
-- when it was last tried.
--
-- Dead letters that are over go after a while, and subscriptions that are no more are
-- retired.
ALTER TABLE dead_letters ADD COLUMN discarded_at timestamptz;
CREATE INDEX dead_letters_over ON dead_letters (COALESCE(discarded_at, last_at)) WHERE status IN ('replayed', 'discarded');
ALTER TABLE dead_letter_actions
    DROP CONSTRAINT dead_letter_actions_action_check,
    ADD CONSTRAINT dead_letter_actions_action_check CHECK (action IN ('replay', 'discard', 'purge', 'retire'));

CREATE TABLE subscription_jobs (
    name   text COLLATE "C" PRIMARY KEY,
    due_at timestamptz NOT NULL
);

COMMENT ON COLUMN dead_letters.discarded_at IS 'when an operator gave it up; null: nobody did';
COMMENT ON TABLE dead_letter_actions IS 'What operators did to dead_letters and subscriptions: who, when, to which messages.';
COMMENT ON COLUMN dead_letter_actions.subscription IS 'empty: of several';
COMMENT ON COLUMN dead_letter_actions.messages IS 'how many; of a retired subscription, all rows';
COMMENT ON TABLE subscription_jobs IS 'What is done once per interval, by one process at a time.';
COMMENT ON COLUMN subscription_jobs.due_at IS 'of the next turn';
