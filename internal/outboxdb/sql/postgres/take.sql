-- Its own row first: a take that runs after its member's reap would leave partitions
-- to nobody [TAKEBLIND].
SELECT member FROM outbox_members WHERE member = $1::bigint AND until > 'epoch' FOR NO KEY UPDATE;
-- One that joined before the server's crash may claim nothing of what it takes.
WITH free AS (
	SELECT p.lane, p.part FROM outbox_partitions AS p
	WHERE p.lane = $2::smallint AND p.owner IS NULL AND EXISTS (SELECT 1 FROM outbox_members AS m JOIN outbox_uncrashed AS u USING (member) WHERE m.member = $1::bigint AND m.lane = $2::smallint AND m.until > 'epoch')
	ORDER BY random() LIMIT (SELECT $3::integer)
	FOR NO KEY UPDATE OF p SKIP LOCKED
)
UPDATE outbox_partitions AS p SET owner = $1::bigint FROM free
WHERE p.lane = free.lane AND p.part = free.part
RETURNING p.part
