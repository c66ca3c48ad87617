-- tolerates: 1
-- Builds that know less send what is due without regard to its broker, and sort for it.
--
-- Timers are sent broker by broker: one that publishes nothing keeps no other waiting.
DROP INDEX timers_due;
DROP INDEX timers_sent;
CREATE INDEX timers_due ON timers ((coalesce(message ->> 'target', '')), available_at, id) WHERE status = 'waiting';
CREATE INDEX timers_sent ON timers ((coalesce(message ->> 'target', '')), sent_at) WHERE status = 'sent';
