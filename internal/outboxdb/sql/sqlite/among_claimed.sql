SELECT DISTINCT v.value AS seq FROM outbox_claims AS c, json_each(c.seqs) AS v
