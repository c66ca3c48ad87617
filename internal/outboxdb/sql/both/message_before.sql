SELECT count(*), min(q.seq)
FROM outbox_messages AS b JOIN outbox_queue AS q ON q.key = b.key AND q.seq < b.seq
WHERE b.seq = ?0
