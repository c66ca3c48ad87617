-- A claim that wasn't answered and still runs has the row: what it inserts is seen behind this lock.
SELECT member FROM outbox_members WHERE member = $1::bigint FOR NO KEY UPDATE;
DELETE FROM outbox_claims WHERE member = $1::bigint AND n = ANY ((SELECT $2::bigint[])::bigint[])
