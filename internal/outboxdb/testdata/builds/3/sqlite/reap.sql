UPDATE outbox_members SET until = ''
WHERE member = ?1 AND (?2 OR until <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
RETURNING member;
UPDATE outbox_queue SET losses = losses + 1
WHERE (lane, part, seq) IN (
	SELECT b.lane, b.part, b.seq FROM outbox_claims AS c JOIN json_each(c.seqs) AS v JOIN outbox_messages AS b ON b.seq = v.value
	WHERE c.member = ?1)
RETURNING seq;
DELETE FROM outbox_claims WHERE member = ?1;
UPDATE outbox_partitions SET owner = NULL
WHERE lane = (SELECT lane FROM outbox_members WHERE member = ?1) AND owner = ?1
RETURNING part;
DELETE FROM outbox_members WHERE member = ?1
