-- PostgreSQL has one set of locks for a whole database: a schema's own is by its table.
SELECT pg_try_advisory_xact_lock(hashint8extended(7164786534531, 'timers'::regclass::oid::bigint))
