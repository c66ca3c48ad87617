SELECT CASE WHEN is_called THEN last_value ELSE 0 END, clock_timestamp() FROM outbox_messages_seq_seq;
SELECT v.lane, (extract(epoch FROM (SELECT min(q.due_at) FROM outbox_queue AS q WHERE q.lane = v.lane AND q.due_at IS NOT NULL) - clock_timestamp()) * 1000)::bigint,
	(SELECT count(*) FROM outbox_partitions AS p WHERE p.lane = v.lane AND p.owner IS NULL)
FROM unnest((SELECT $1::smallint[])::smallint[]) AS v(lane);
SELECT m.lane, m.member, m.name, m.healthy, m.until <= clock_timestamp(), m.until, COALESCE(m.trouble, '') = '', (SELECT count(*) FROM outbox_partitions AS p WHERE p.lane = m.lane AND p.owner = m.member)
FROM outbox_members AS m WHERE m.lane = ANY ((SELECT $1::smallint[])::smallint[])
ORDER BY m.member
