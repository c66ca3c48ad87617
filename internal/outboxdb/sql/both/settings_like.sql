SELECT name, value FROM outbox_settings WHERE substr(name, 1, ?0) = ?1
