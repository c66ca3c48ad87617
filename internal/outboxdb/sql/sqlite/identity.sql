SELECT (SELECT value FROM outbox_settings WHERE name = ?1), NULL, NULL, NULL, file
FROM pragma_database_list WHERE name = 'main'
