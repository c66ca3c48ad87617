DELETE FROM outbox_claims WHERE member = ?1 AND n = ?2 RETURNING member;
INSERT INTO outbox_log (lane, member, n, published, retries, low, high, seqs, attempts)
SELECT ?3, ?1, ?2, count(*), sum(q.attempts), min(q.seq), max(q.seq), json_group_array(q.seq),
	CASE WHEN max(q.attempts) > 0 THEN json_group_array(q.attempts + 1) END
FROM json_each(?4) AS p
CROSS JOIN outbox_queue AS q ON q.lane = ?3 AND q.part = (p.value ->> 0) AND q.seq = (p.value ->> 1)
HAVING count(*) > 0;
DELETE FROM outbox_messages
WHERE ?7 AND seq <= COALESCE((SELECT min(CAST(value AS INTEGER)) FROM outbox_settings WHERE name LIKE 'backfill:%'), 9223372036854775807)
	AND seq IN (
		SELECT q.seq FROM json_each(?4) AS p
		CROSS JOIN outbox_queue AS q ON q.lane = ?3 AND q.part = (p.value ->> 0) AND q.seq = (p.value ->> 1));
DELETE FROM outbox_queue WHERE (lane, part, seq) IN (SELECT ?3, p.value ->> 0, (p.value ->> 1) FROM json_each(?4) AS p);
UPDATE outbox_queue SET attempts = v.attempts, losses = 0, held = v.held, failure = v.class, error = v.error,
	failed_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now'),
	due_at = CASE WHEN v.held = 0 THEN strftime('%Y-%m-%dT%H:%M:%fZ', 'now', (v.due_in / 1000.0) || ' seconds') END
FROM (
	SELECT p.value ->> 0 AS part, (p.value ->> 1) AS seq, json_extract(?11, '$[' || p.key || ']') AS attempts,
		json_extract(?12, '$[' || p.key || ']') AS due_in, json_extract(?13, '$[' || p.key || ']') AS held,
		json_extract(?14, '$[' || p.key || ']') AS class, json_extract(?15, '$[' || p.key || ']') AS error
	FROM json_each(?8) AS p) AS v
WHERE outbox_queue.lane = ?3 AND outbox_queue.part = v.part AND outbox_queue.seq = v.seq;
UPDATE outbox_queue SET losses = losses + 1
WHERE (lane, part, seq) IN (SELECT ?3, p.value ->> 0, (p.value ->> 1) FROM json_each(?16) AS p);
INSERT INTO outbox_abandoned (seq, lane, part, key, class, error, attempts, losses, maybe_delivered)
SELECT q.seq, q.lane, q.part, q.key, json_extract(?25, '$[' || p.key || ']'), json_extract(?26, '$[' || p.key || ']'), json_extract(?22, '$[' || p.key || ']'),
	json_extract(?23, '$[' || p.key || ']'), json_extract(?24, '$[' || p.key || ']')
FROM json_each(?19) AS p
CROSS JOIN outbox_queue AS q ON q.lane = ?3 AND q.part = (p.value ->> 0) AND q.seq = (p.value ->> 1);
DELETE FROM outbox_queue WHERE (lane, part, seq) IN (SELECT ?3, p.value ->> 0, (p.value ->> 1) FROM json_each(?19) AS p);
UPDATE outbox_queue SET due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
WHERE due_at IS NULL AND NOT held AND (lane, part, seq) IN (
	SELECT n.lane, n.part, n.seq FROM json_each(?20) AS s JOIN outbox_abandoned AS g ON g.seq = s.value
	JOIN outbox_queue AS n ON n.lane = g.lane AND n.seq = (
		SELECT min(f.seq) FROM outbox_queue AS f INDEXED BY outbox_queue_key WHERE f.key = g.key AND f.seq > g.seq AND f.lane = g.lane)
		AND n.part = g.part)
