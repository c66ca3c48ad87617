-- tolerates: 1
-- People look at timers in the order of their times, whatever their state and broker.
CREATE INDEX timers_at ON timers (available_at, id);
