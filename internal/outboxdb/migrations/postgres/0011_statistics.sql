-- tolerates: 5
-- A backlog that grows after the queue was empty is analysed at 10,000 rows, and not at
-- 100,000 only: for what operators search, PostgreSQL took the queue for empty until then, and
-- went through an index of it for each row.
ALTER TABLE outbox_queue SET (autovacuum_analyze_threshold = 10000);
