DELETE FROM outbox_claims WHERE member = ?1 AND n = ?2 RETURNING member;
INSERT INTO outbox_log (lane, member, n, published, retries, low, high, seqs, attempts)
SELECT ?3, ?1, ?2, count(*), sum(q.attempts), min(q.seq), max(q.seq), json_group_array(q.seq),
	CASE WHEN max(q.attempts) > 0 THEN json_group_array(q.attempts + 1) END
FROM json_each(?4) AS p JOIN json_each(?5) AS s ON s.key = p.key
JOIN outbox_queue AS q ON q.lane = ?3 AND q.part = p.value AND q.seq = s.value
HAVING count(*) > 0;
DELETE FROM outbox_messages
WHERE ?6 AND seq <= COALESCE((SELECT min(CAST(value AS INTEGER)) FROM outbox_settings WHERE name LIKE 'backfill:%'), 9223372036854775807)
	AND seq IN (
		SELECT q.seq FROM json_each(?4) AS p JOIN json_each(?5) AS s ON s.key = p.key
		JOIN outbox_queue AS q ON q.lane = ?3 AND q.part = p.value AND q.seq = s.value);
DELETE FROM outbox_queue WHERE (lane, part, seq) IN (SELECT ?3, p.value, s.value FROM json_each(?4) AS p JOIN json_each(?5) AS s ON s.key = p.key);
UPDATE outbox_queue SET attempts = v.attempts, losses = 0, held = v.held, failure = v.class, error = v.error,
	failed_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now'),
	due_at = CASE WHEN v.held = 0 THEN strftime('%Y-%m-%dT%H:%M:%fZ', 'now', (v.due_in / 1000.0) || ' seconds') END
FROM (
	SELECT p.value AS part, s.value AS seq, a.value AS attempts, d.value AS due_in, h.value AS held, c.value AS class, e.value AS error
	FROM json_each(?7) AS p JOIN json_each(?8) AS s ON s.key = p.key JOIN json_each(?9) AS a ON a.key = p.key JOIN json_each(?10) AS d ON d.key = p.key
	JOIN json_each(?11) AS h ON h.key = p.key JOIN json_each(?12) AS c ON c.key = p.key JOIN json_each(?13) AS e ON e.key = p.key) AS v
WHERE outbox_queue.lane = ?3 AND outbox_queue.part = v.part AND outbox_queue.seq = v.seq;
UPDATE outbox_queue SET losses = losses + 1
WHERE (lane, part, seq) IN (SELECT ?3, p.value, s.value FROM json_each(?14) AS p JOIN json_each(?15) AS s ON s.key = p.key);
INSERT INTO outbox_abandoned (seq, lane, part, key, class, error, attempts, losses, maybe_delivered)
SELECT q.seq, q.lane, q.part, q.key, c.value, e.value, a.value, l.value, m.value
FROM json_each(?16) AS p JOIN json_each(?17) AS s ON s.key = p.key JOIN json_each(?18) AS a ON a.key = p.key JOIN json_each(?19) AS l ON l.key = p.key
JOIN json_each(?20) AS m ON m.key = p.key JOIN json_each(?21) AS c ON c.key = p.key JOIN json_each(?22) AS e ON e.key = p.key
JOIN outbox_queue AS q ON q.lane = ?3 AND q.part = p.value AND q.seq = s.value;
DELETE FROM outbox_queue WHERE (lane, part, seq) IN (SELECT ?3, p.value, s.value FROM json_each(?16) AS p JOIN json_each(?17) AS s ON s.key = p.key);
UPDATE outbox_queue SET due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
WHERE due_at IS NULL AND NOT held AND (lane, part, seq) IN (
	SELECT n.lane, n.part, n.seq FROM json_each(?17) AS s JOIN outbox_abandoned AS g ON g.seq = s.value
	JOIN outbox_queue AS n ON n.lane = g.lane AND n.seq = (
		SELECT min(f.seq) FROM outbox_queue AS f INDEXED BY outbox_queue_key WHERE f.key = g.key AND f.seq > g.seq AND f.lane = g.lane)
		AND n.part = g.part)
