-- tolerates: 2
-- What builds of before write gets its place by itself.
--
-- Events get a place among all that the context keeps, see the table history. Those
-- from before are in the order of their times, and each aggregate's in the order of its
-- versions, whatever the clocks said: by the latest time up to its own.
CREATE SEQUENCE IF NOT EXISTS history_position AS bigint CACHE 1;

ALTER TABLE events ADD COLUMN position bigint;
UPDATE events AS e SET position = o.position
FROM (
    SELECT category, id, version, n, (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM history_position)
        + row_number() OVER (ORDER BY at, category, id, version, n) AS position
    FROM (SELECT category, id, version, n, max(occurred_at) OVER (PARTITION BY category, id ORDER BY version, n) AS at FROM events) AS t
) AS o
WHERE (e.category, e.id, e.version, e.n) = (o.category, o.id, o.version, o.n);
SELECT setval('history_position', max(position)) FROM events HAVING max(position) IS NOT NULL;

ALTER TABLE events
    ALTER COLUMN position SET DEFAULT nextval('history_position'),
    ALTER COLUMN position SET NOT NULL;
CREATE UNIQUE INDEX events_position ON events (position);
COMMENT ON COLUMN events.position IS 'where it is among all events of this table and of history; there are gaps';

-- Who may write events has to draw positions from now on.
DO $$
DECLARE
    r record;
BEGIN
    FOR r IN
        SELECT DISTINCT a.grantee::regrole AS name
        FROM aclexplode((SELECT relacl FROM pg_class WHERE oid = 'events'::regclass)) AS a
        WHERE a.privilege_type = 'INSERT' AND a.grantee <> 0
    LOOP
        EXECUTE format('GRANT USAGE ON SEQUENCE history_position TO %s', r.name);
    END LOOP;
END $$;
