SELECT o.seq, o.status, o.held, (?1) IS TRUE FROM outbox AS o WHERE o.seq IN (?0) ORDER BY o.seq
