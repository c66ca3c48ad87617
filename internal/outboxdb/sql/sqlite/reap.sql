UPDATE outbox_members SET until = '1970-01-01T00:00:00.000Z'
WHERE member = ?1 AND (?2 OR until <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
RETURNING member;
SELECT c.n, v.value, COALESCE(q.part, 0), COALESCE(q.key, 0)
FROM outbox_claims AS c JOIN json_each(c.seqs) AS v
LEFT JOIN outbox_messages AS b ON b.seq = v.value
LEFT JOIN outbox_queue AS q ON q.lane = b.lane AND q.part = b.part AND q.seq = b.seq
WHERE c.member = ?1 AND c.n >= 281474976710656 AND NOT ?2
ORDER BY c.n, v.value;
UPDATE outbox_queue SET losses = losses + 1
WHERE (?2 OR NOT EXISTS (SELECT 1 FROM outbox_claims WHERE member = ?1 AND n >= 281474976710656)) AND (lane, part, seq) IN (
	SELECT b.lane, b.part, b.seq FROM outbox_claims AS c JOIN json_each(c.seqs) AS v JOIN outbox_messages AS b ON b.seq = v.value
	WHERE c.member = ?1)
RETURNING seq;
DELETE FROM outbox_claims WHERE member = ?1
	AND (?2 OR NOT EXISTS (SELECT 1 FROM outbox_claims WHERE member = ?1 AND n >= 281474976710656));
UPDATE outbox_partitions SET owner = NULL
WHERE lane = (SELECT lane FROM outbox_members WHERE member = ?1) AND owner = ?1
	AND NOT EXISTS (SELECT 1 FROM outbox_claims WHERE member = ?1 AND n >= 281474976710656)
RETURNING part;
DELETE FROM outbox_members WHERE member = ?1 AND NOT EXISTS (SELECT 1 FROM outbox_claims WHERE member = ?1 AND n >= 281474976710656)
