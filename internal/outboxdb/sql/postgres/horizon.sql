-- Not max(seq): on an empty table the best plan of that counts all rows, and stays.
SELECT COALESCE((SELECT seq FROM outbox_messages ORDER BY seq DESC LIMIT 1), 0);
-- Afterwards: who has drawn a lower number by then and isn't here has committed, and is seen.
SELECT virtualtransaction FROM pg_locks
WHERE locktype = 'relation' AND granted AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
	AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND relation = 'outbox_messages'::regclass
	AND pid IS DISTINCT FROM pg_backend_pid()
