UPDATE outbox_members AS m SET until = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', (?4 / 1000.0) || ' seconds'), healthy = h.value, trouble = nullif(t.value, '')
FROM json_each(?1) AS v, json_each(?2) AS h, json_each(?3) AS t
WHERE m.member = v.value AND h.key = v.key AND t.key = v.key AND m.until > '1970-01-01T00:00:00.000Z'
RETURNING member;
SELECT m.member, p.part
FROM json_each(?1) AS v
JOIN outbox_members AS m ON m.member = v.value
JOIN outbox_partitions AS p ON p.lane = m.lane AND p.owner = m.member
