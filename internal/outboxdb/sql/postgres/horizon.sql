-- Not the highest of the table: rows that were removed since somebody took a snapshot which is
-- still open are in its index, and would be passed one by one each time.
SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM outbox_messages_seq_seq;
-- Afterwards: who has drawn a lower number by then and isn't here has committed, and is seen.
SELECT virtualtransaction FROM pg_locks
WHERE locktype = 'relation' AND granted AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
	AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND relation = 'outbox_messages'::regclass
	AND pid IS DISTINCT FROM pg_backend_pid()
