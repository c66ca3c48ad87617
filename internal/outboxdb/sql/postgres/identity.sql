SELECT (SELECT value FROM outbox_settings WHERE name = $1::text), s.system_identifier::text,
    CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_lsn()), 8) END,
    (SELECT oid::text FROM pg_database WHERE datname = current_database()), NULL::text
FROM pg_control_system() AS s
