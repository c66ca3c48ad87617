SELECT id, at, actor, action, filter, rows FROM outbox_actions ORDER BY id DESC LIMIT ?0
