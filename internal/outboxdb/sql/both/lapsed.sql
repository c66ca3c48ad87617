SELECT member FROM outbox_members WHERE until <= ?0 ORDER BY member
