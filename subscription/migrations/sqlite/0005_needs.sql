-- tolerates: 5
-- Builds that know less park messages of newer ones and don't note what these wait for:
-- nobody would take them up.
--
-- What a message waits for that a newer build has written: builds that read it find it
-- here. Ordering.OrderPlaced.v2, or stored:library::book.v2 of what its handler loads.
ALTER TABLE dead_letters ADD COLUMN needs TEXT;
UPDATE dead_letters SET needs = message_type WHERE reason = 'newer_version' AND status IN ('parked', 'held', 'waiting', 'replay', 'early');
CREATE INDEX dead_letters_needs ON dead_letters (subscription, needs, status, seq) WHERE needs IS NOT NULL AND status IN ('parked', 'held', 'waiting', 'replay', 'early');
