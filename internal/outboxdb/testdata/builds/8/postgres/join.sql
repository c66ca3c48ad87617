WITH joined AS (
	INSERT INTO outbox_members (lane, name, until)
	SELECT v.lane, $2::text, clock_timestamp() + $3::bigint * interval '1 millisecond'
	FROM unnest((SELECT $1::smallint[])::smallint[]) AS v(lane)
	RETURNING lane, member
), seen AS (
	INSERT INTO outbox_uncrashed (member) SELECT member FROM joined
)
SELECT lane, member FROM joined
