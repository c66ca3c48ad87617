-- The limit on tables such as those of Waybill's second outbox: a body is written
-- once, and a narrow queue row is there until its event is published.
CREATE SCHEMA by_hand_new;

CREATE TABLE by_hand_new.outbox_messages (
    seq               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lane              smallint NOT NULL,
    part              smallint NOT NULL,
    id                uuid NOT NULL,
    message_id        uuid NOT NULL,
    stream            text NOT NULL,
    stream_category   text NOT NULL,
    topic             text,
    partition_key     text NOT NULL,
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
    occurred_at       timestamptz NOT NULL,
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    key               bigint,
    topic_hash        bigint,
    bytes             integer,
    UNIQUE (message_id, lane)
) WITH (fillfactor = 100, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_analyze_scale_factor = 0.5);

CREATE TABLE by_hand_new.outbox_queue (
    seq       bigint NOT NULL,
    key       bigint NOT NULL,
    topic     bigint NOT NULL,
    due_at    timestamptz,
    failed_at timestamptz,
    bytes     integer NOT NULL,
    lane      smallint NOT NULL,
    part      smallint NOT NULL,
    class     smallint NOT NULL DEFAULT 0,
    attempts  smallint NOT NULL DEFAULT 0,
    losses    smallint NOT NULL DEFAULT 0,
    held      boolean NOT NULL DEFAULT false,
    failure   text,
    error     text,
    PRIMARY KEY (lane, part, seq)
) WITH (fillfactor = 100, vacuum_truncate = false,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_analyze_scale_factor = 0.5, autovacuum_analyze_threshold = 10000);

CREATE INDEX outbox_queue_key ON by_hand_new.outbox_queue (key, seq);
CREATE INDEX outbox_queue_due ON by_hand_new.outbox_queue (lane, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX outbox_queue_first ON by_hand_new.outbox_queue (lane, part, seq) WHERE class > 0;

CREATE TABLE by_hand_new.outbox_log (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lane      smallint NOT NULL,
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    published integer NOT NULL,
    seqs      bigint[] NOT NULL
);
