UPDATE outbox_members AS m SET until = clock_timestamp() + $4::bigint * interval '1 millisecond', healthy = v.healthy <> 0, trouble = nullif(v.trouble, ''), broker = nullif(v.broker, '')
FROM unnest((SELECT $1::bigint[])::bigint[], (SELECT $2::integer[])::integer[], (SELECT $3::text[])::text[], (SELECT $5::text[])::text[], (SELECT $6::text[])::text[]) AS v(member, healthy, trouble, broker, target)
WHERE m.member = v.member AND m.until > 'epoch' -- its reap has begun
	-- What it settled last may be undone where it joined before the server's crash: it joins anew.
	AND EXISTS (SELECT FROM outbox_uncrashed AS u WHERE u.member = m.member)
	-- Its target has another number where somebody has emptied the table: what is stored now isn't seen under the old one.
	AND EXISTS (SELECT FROM outbox_lanes AS l WHERE l.id = m.lane AND l.target = v.target)
RETURNING m.member;
-- In a statement of its own, which sees what a take did that the first has waited for.
SELECT m.member, p.part
FROM unnest((SELECT $1::bigint[])::bigint[]) AS v(member)
JOIN outbox_members AS m ON m.member = v.member
JOIN outbox_partitions AS p ON p.lane = m.lane AND p.owner = m.member
