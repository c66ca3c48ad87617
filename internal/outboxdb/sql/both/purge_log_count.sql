INSERT INTO outbox_counts (lane, published, retries)
SELECT lane, sum(published), sum(retries) FROM outbox_log
WHERE id IN (?0) AND id > (SELECT CAST(value AS bigint) FROM outbox_settings WHERE name = 'counted')
GROUP BY lane
ON CONFLICT (lane) DO UPDATE SET published = outbox_counts.published + excluded.published, retries = outbox_counts.retries + excluded.retries
