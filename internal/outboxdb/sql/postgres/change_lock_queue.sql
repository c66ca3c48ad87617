SELECT count(*) FROM (
    SELECT 1 FROM outbox_messages AS b JOIN outbox_queue AS q ON q.lane = b.lane AND q.part = b.part AND q.seq = b.seq
    WHERE b.seq IN (?0) ORDER BY q.seq FOR UPDATE OF q) AS locked
