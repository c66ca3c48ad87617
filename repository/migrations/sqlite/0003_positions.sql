-- tolerates: 2
-- What builds of before write gets its place by itself.
--
-- Events get a place among all that the context keeps, see the table history. Those
-- from before are in the order of their times, and each aggregate's in the order of its
-- versions, whatever the clocks said: by the latest time up to its own.
CREATE TABLE IF NOT EXISTS history_position (n INTEGER NOT NULL); -- the last one that was drawn
INSERT INTO history_position (n) SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM history_position);

ALTER TABLE events ADD COLUMN position INTEGER; -- where it is among all events of this table and of history; there are gaps
UPDATE events SET position = o.position
FROM (
    SELECT row, (SELECT n FROM history_position) + row_number() OVER (ORDER BY at, category, id, version, n) AS position
    FROM (SELECT rowid AS row, category, id, version, n, max(occurred_at) OVER (PARTITION BY category, id ORDER BY version, n) AS at FROM events)
) AS o
WHERE events.rowid = o.row;
UPDATE history_position SET n = max(n, (SELECT coalesce(max(position), 0) FROM events));
CREATE UNIQUE INDEX events_position ON events (position);

CREATE TRIGGER events_inserted AFTER INSERT ON events FOR EACH ROW
BEGIN
    UPDATE history_position SET n = n + 1;
    UPDATE events SET position = (SELECT n FROM history_position) WHERE rowid = NEW.rowid;
END;

-- What is written over the mark of a refused version happens now.
CREATE TRIGGER events_written_over AFTER UPDATE OF type ON events FOR EACH ROW
BEGIN
    UPDATE history_position SET n = n + 1;
    UPDATE events SET position = (SELECT n FROM history_position) WHERE rowid = NEW.rowid;
END;
