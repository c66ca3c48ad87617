DELETE FROM outbox_queue AS q USING outbox_abandoned AS a
WHERE a.seq IN (?0) AND q.lane = a.lane AND q.part = a.part AND q.seq = a.seq
