-- Who joined before the server's crash, or on the primary before, may have rows in hand again that it has settled.
WITH mine AS (
	SELECT p.lane, p.part FROM outbox_partitions AS p
	WHERE p.lane = $2::smallint AND p.part = ANY ((SELECT $3::smallint[])::smallint[]) AND p.owner = $1::bigint
		AND EXISTS (SELECT FROM outbox_uncrashed AS u WHERE u.member = p.owner)
	ORDER BY p.part FOR NO KEY UPDATE OF p
)
UPDATE outbox_partitions AS p SET owner = NULL FROM mine WHERE p.lane = mine.lane AND p.part = mine.part
