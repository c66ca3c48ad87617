SELECT COALESCE((SELECT min(id) - 1 FROM outbox_log WHERE id > c.upto AND at > ?0), (SELECT max(id) FROM outbox_log WHERE id > c.upto), c.upto)
FROM (SELECT CAST(value AS bigint) AS upto FROM outbox_settings WHERE name = 'counted') AS c
