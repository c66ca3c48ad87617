SELECT pg_advisory_xact_lock(hashint8extended(0, 'outbox_messages'::regclass::oid::bigint))
