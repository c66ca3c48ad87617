WITH due (seq, at) AS (VALUES ?0)
INSERT INTO outbox_queue (lane, part, seq, key, topic, class, bytes, due_at, failure, error, failed_at)
SELECT a.lane, a.part, a.seq, b.key, b.topic_hash, (b.priority > 0) - (b.priority < 0), b.bytes, due.at, a.class, a.error, CASE WHEN a.class IS NOT NULL THEN a.at END
FROM due JOIN outbox_abandoned AS a ON a.seq = due.seq JOIN outbox_messages AS b ON b.seq = a.seq
