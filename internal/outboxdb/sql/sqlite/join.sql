INSERT INTO outbox_members (member, lane, name, until)
SELECT m.value, l.id, ?2, strftime('%Y-%m-%dT%H:%M:%fZ', 'now', (?3 / 1000.0) || ' seconds')
FROM json_each(?1) AS v, json_each(?4) AS t, json_each(?5) AS m, outbox_lanes AS l
WHERE t.key = v.key AND m.key = v.key AND l.id = v.value AND l.target = t.value
RETURNING lane, member
