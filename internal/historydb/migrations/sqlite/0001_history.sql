-- One counter for both tables of events: a position says where an event is among all.
-- As there is one writer, positions are in the order of commits.
CREATE TABLE IF NOT EXISTS history_position (n INTEGER NOT NULL); -- the last one that was drawn
INSERT INTO history_position (n) SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM history_position);

-- Events that are kept, beside those in the table events, which event-sourced
-- aggregates are made of. No row is ever changed or removed.
CREATE TABLE history (
    position    INTEGER PRIMARY KEY,     -- where it is among all events of both tables; there are gaps; below 0: imported
    version     INTEGER NOT NULL,        -- the aggregate's, after the save; of a foreign event 0 if its sender doesn't say
    occurred_at TEXT    NOT NULL,        -- such as 2026-01-02T03:04:05.678901Z
    n           INTEGER NOT NULL,        -- place within the save, from 1
    message_id  TEXT    NOT NULL UNIQUE, -- the event's id, as in the outbox; of a foreign event whose id is no UUID, one that is made of it
    category    TEXT    NOT NULL,        -- <context>::<aggregate>
    id          TEXT    NOT NULL,        -- the aggregate's identity
    type        TEXT    NOT NULL,        -- <Context>.<Event>.v<version>
    data        TEXT    NOT NULL,        -- the bytes that the outbox has
    metadata    TEXT                     -- where the event came from, and what else the other columns don't say
);

CREATE INDEX history_aggregate ON history (category, id, version, n);

-- What units of work insert into.
CREATE VIEW history_insert AS SELECT * FROM history;

CREATE TRIGGER history_insert_event INSTEAD OF INSERT ON history_insert FOR EACH ROW
BEGIN
    UPDATE history_position SET n = n + 1;
    INSERT INTO history (position, version, occurred_at, n, message_id, category, id, type, data, metadata)
    VALUES ((SELECT n FROM history_position), NEW.version, NEW.occurred_at, NEW.n, NEW.message_id, NEW.category, NEW.id, NEW.type, NEW.data, NEW.metadata);
END;
