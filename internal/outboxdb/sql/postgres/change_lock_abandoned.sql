SELECT count(*) FROM (SELECT 1 FROM outbox_abandoned WHERE seq IN (?0) ORDER BY seq FOR UPDATE) AS locked
