UPDATE outbox_members AS m SET until = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', (?4 / 1000.0) || ' seconds'), healthy = h.value, trouble = nullif(t.value, ''), broker = nullif(b.value, '')
FROM json_each(?1) AS v, json_each(?2) AS h, json_each(?3) AS t, json_each(?5) AS b, json_each(?6) AS n
WHERE m.member = v.value AND h.key = v.key AND t.key = v.key AND b.key = v.key AND n.key = v.key AND m.until > '1970-01-01T00:00:00.000Z'
	-- Its target has another number where somebody has emptied the table: what is stored now isn't seen under the old one.
	AND EXISTS (SELECT 1 FROM outbox_lanes AS l WHERE l.id = m.lane AND l.target = n.value)
RETURNING member;
SELECT m.member, p.part
FROM json_each(?1) AS v
JOIN outbox_members AS m ON m.member = v.value
JOIN outbox_partitions AS p ON p.lane = m.lane AND p.owner = m.member
