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
DELETE FROM outbox_queue WHERE (lane, part, seq) IN (SELECT ?3, p.value ->> 0, (p.value ->> 1) FROM json_each(?4) AS p)
