SELECT COALESCE(max(seq), 0) FROM outbox_messages;
-- Afterwards: who has drawn a lower number by then and isn't here has committed, and is seen.
SELECT virtualtransaction FROM pg_locks
WHERE locktype = 'relation' AND granted AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
	AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND relation = 'outbox_messages'::regclass
	AND pid IS DISTINCT FROM pg_backend_pid()
