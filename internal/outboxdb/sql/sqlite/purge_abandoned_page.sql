-- What a target that is joining may need stays.
SELECT seq, at, 1, TRUE, seq <= COALESCE((SELECT min(CAST(value AS bigint)) FROM outbox_settings WHERE name LIKE 'backfill:%'), 9223372036854775807)
FROM outbox_abandoned WHERE at <= ?2 AND (at, seq) > (COALESCE(?1, ''), ?0) ORDER BY at, seq LIMIT ?3 ?4
