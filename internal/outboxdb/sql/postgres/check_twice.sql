SELECT q.seq, count(*) OVER () FROM outbox_queue AS q
WHERE q.seq IN (SELECT seq FROM outbox_abandoned) OR q.seq IN (SELECT seq FROM (SELECT unnest(seqs) AS seq FROM outbox_log) AS g)
ORDER BY q.seq LIMIT 5
