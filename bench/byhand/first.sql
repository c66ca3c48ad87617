-- The outbox that the limit works on: Waybill's first, as far as publishing needs it.
-- It is the limit's own, so that what Waybill does about its tables changes nothing
-- that the limit measures.
CREATE SCHEMA by_hand;

CREATE TABLE by_hand.outbox (
    seq               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id                uuid NOT NULL,
    message_id        uuid NOT NULL,
    target_broker     text NOT NULL,
    stream            text NOT NULL,
    stream_category   text NOT NULL,
    topic             text,
    partition_key     text NOT NULL,
    partition         integer NOT NULL,
    message_type      text NOT NULL,
    aggregate_type    text NOT NULL,
    aggregate_id      text NOT NULL,
    aggregate_version bigint NOT NULL,
    payload           bytea NOT NULL,
    content_type      text NOT NULL,
    cloud_event       text,
    correlation_id    text,
    causation_id      text,
    tenant_id         text,
    traceparent       text,
    priority          integer NOT NULL DEFAULT 0,
    status            text NOT NULL DEFAULT 'pending'
        CHECK (status IN ('pending', 'processing', 'published', 'failed', 'abandoned')),
    attempts          integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    max_attempts      integer NOT NULL DEFAULT 5,
    available_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_attempt_at   timestamptz,
    last_error        text CHECK (length(last_error) <= 2048),
    failure_class     text
        CHECK (failure_class IN ('unavailable', 'transient', 'unknown', 'permanent', 'crash')),
    locked_by         text,
    locked_until      timestamptz,
    fence             bigint,
    claim_id          bigint,
    losses            integer NOT NULL DEFAULT 0,
    held              boolean NOT NULL DEFAULT false,
    occurred_at       timestamptz NOT NULL,
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    published_at      timestamptz,
    expires_at        timestamptz,
    finished_at       timestamptz,
    UNIQUE (message_id, target_broker),
    CONSTRAINT outbox_processing_has_a_claim CHECK ((status = 'processing') = (claim_id IS NOT NULL)),
    CONSTRAINT outbox_processing_has_an_owner CHECK ((status = 'processing') = (locked_by IS NOT NULL))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.5);

DO $$
DECLARE
    name text;
BEGIN
    FOR name IN SELECT attname FROM pg_attribute WHERE attrelid = 'by_hand.outbox'::regclass AND attnum > 0 LOOP
        EXECUTE format('ALTER TABLE by_hand.outbox ALTER COLUMN %I SET STATISTICS 10', name);
    END LOOP;
END
$$;

CREATE INDEX outbox_unfinished ON by_hand.outbox (target_broker, partition, priority, seq) WHERE finished_at IS NULL;
CREATE INDEX outbox_prioritized ON by_hand.outbox (target_broker, priority) WHERE finished_at IS NULL AND priority <> 0;
CREATE INDEX outbox_keys ON by_hand.outbox (partition_key, seq) WHERE finished_at IS NULL;
CREATE INDEX outbox_held ON by_hand.outbox (target_broker) WHERE held;
CREATE INDEX outbox_abandoned ON by_hand.outbox (seq) WHERE finished_at IS NOT NULL AND published_at IS NULL;
