SELECT count(*) FROM outbox_messages WHERE seq = ANY (ARRAY(SELECT unnest(seqs) FROM outbox_log WHERE id IN (?0)))
