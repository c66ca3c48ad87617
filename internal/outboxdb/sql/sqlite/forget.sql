-- There is one writer, so nothing of it still runs.
SELECT member FROM outbox_members WHERE member = ?1;
DELETE FROM outbox_claims WHERE member = ?1 AND n IN (SELECT value FROM json_each(?2))
