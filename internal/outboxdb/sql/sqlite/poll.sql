SELECT COALESCE((SELECT seq FROM sqlite_sequence WHERE name = 'outbox_messages'), 0), strftime('%Y-%m-%dT%H:%M:%fZ', 'now');
SELECT v.value, CAST((julianday((SELECT min(q.due_at) FROM outbox_queue AS q WHERE q.lane = v.value AND q.due_at IS NOT NULL)) - julianday('now')) * 86400000 AS INTEGER),
	(SELECT count(*) FROM outbox_partitions AS p WHERE p.lane = v.value AND p.owner IS NULL)
FROM json_each(?1) AS v;
SELECT m.lane, m.member, m.name, m.healthy, m.until <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), m.until, COALESCE(m.trouble, '') = '', (SELECT count(*) FROM outbox_partitions AS p WHERE p.lane = m.lane AND p.owner = m.member)
FROM outbox_members AS m WHERE m.lane IN (SELECT value FROM json_each(?1))
ORDER BY m.member
