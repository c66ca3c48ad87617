-- What a target that is joining may need stays. A row whose time is yet to come is from when the
-- database's clock was wrong: it stays until then, and ends no walk.
SELECT id, at, published, at <= ?2 OR at > ?5, at <= ?2 AND high <= COALESCE((SELECT min(CAST(value AS bigint)) FROM outbox_settings WHERE name LIKE 'backfill:%'), 9223372036854775807)
FROM outbox_log WHERE id > ?0 ORDER BY id LIMIT ?3 ?4
