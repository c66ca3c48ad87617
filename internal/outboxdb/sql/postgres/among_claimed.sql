SELECT DISTINCT unnest(seqs) AS seq FROM outbox_claims
