SELECT q.seq, count(*) OVER () FROM outbox_queue AS q
WHERE q.seq IN (SELECT seq FROM outbox_abandoned) OR q.seq IN (SELECT seq FROM (SELECT j.value AS seq FROM outbox_log AS g, json_each(g.seqs) AS j) AS g)
ORDER BY q.seq LIMIT 5
