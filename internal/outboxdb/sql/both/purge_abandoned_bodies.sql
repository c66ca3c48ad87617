-- On SQLite an operator may have put one back since the page was read.
DELETE FROM outbox_messages WHERE seq IN (SELECT seq FROM outbox_abandoned WHERE seq IN (?0))
