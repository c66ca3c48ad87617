WITH joined AS (
	INSERT INTO outbox_members (member, lane, name, until) OVERRIDING SYSTEM VALUE -- earlier builds number by a sequence
	SELECT v.member, v.lane, $2::text, clock_timestamp() + $3::bigint * interval '1 millisecond'
	FROM unnest((SELECT $1::smallint[])::smallint[], (SELECT $4::text[])::text[], (SELECT $5::bigint[])::bigint[]) AS v(lane, target, member)
	JOIN outbox_lanes AS l ON l.id = v.lane AND l.target = v.target
	RETURNING lane, member
), seen AS (
	INSERT INTO outbox_uncrashed (member) SELECT member FROM joined
)
SELECT lane, member FROM joined
