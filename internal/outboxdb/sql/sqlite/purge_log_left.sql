SELECT count(*) FROM outbox_messages WHERE seq IN (SELECT j.value FROM outbox_log AS g, json_each(g.seqs) AS j WHERE g.id IN (?0))
