-- fillfactor: a claim rewrites a row; with room on its page, and no indexed
-- column touched, that costs no index entry (HOT).
CREATE TABLE outbox (
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

-- An ANALYZE keeps every dead row alive for as long as it runs, and claims pass
-- them one by one. No plan here needs much of it: it is made rare, and its sample
-- a tenth.
DO $$
DECLARE
    name text;
BEGIN
    FOR name IN SELECT attname FROM pg_attribute WHERE attrelid = 'outbox'::regclass AND attnum > 0 LOOP
        EXECUTE format('ALTER TABLE outbox ALTER COLUMN %I SET STATISTICS 10', name);
    END LOOP;
END
$$;

-- What is not finished, in the order of each partition. A claim changes none of
-- these columns, finished_at included.
CREATE INDEX outbox_unfinished ON outbox (target_broker, partition, priority, seq) WHERE finished_at IS NULL;

-- Whether there is any with a priority; most of the time there is none.
CREATE INDEX outbox_prioritized ON outbox (target_broker, priority) WHERE finished_at IS NULL AND priority <> 0;

-- What is before a row with a priority in its key.
CREATE INDEX outbox_keys ON outbox (partition_key, seq) WHERE finished_at IS NULL;

-- Held rows: few, and looked for by operators and signals.
CREATE INDEX outbox_held ON outbox (target_broker) WHERE held;

-- Abandoned rows that hold nothing: signals and housekeeping find them among
-- any number of published ones.
CREATE INDEX outbox_abandoned ON outbox (seq) WHERE finished_at IS NOT NULL AND published_at IS NULL;

COMMENT ON TABLE outbox IS 'Events between the transaction that made them and the brokers they leave for: one row per event and target broker.';
COMMENT ON COLUMN outbox.seq IS 'insertion order, which is commit order per aggregate';
COMMENT ON COLUMN outbox.id IS 'UUIDv7 of this row';
COMMENT ON COLUMN outbox.message_id IS 'the event''s id: equal in all its rows and on every attempt';
COMMENT ON COLUMN outbox.target_broker IS 'which broker this row is for';
COMMENT ON COLUMN outbox.stream IS 'the aggregate''s stream, <context>::<aggregate>-<id>';
COMMENT ON COLUMN outbox.stream_category IS '<context>::<aggregate>';
COMMENT ON COLUMN outbox.topic IS 'destination without the broker''s prefix; null: the category with . for ::';
COMMENT ON COLUMN outbox.partition_key IS 'rows of one key and target broker are published in the order of seq';
COMMENT ON COLUMN outbox.partition IS 'hash bucket of partition_key; its owner is in outbox_partitions';
COMMENT ON COLUMN outbox.message_type IS '<Context>.<Event>.v<version>';
COMMENT ON COLUMN outbox.aggregate_type IS 'kind of the aggregate that raised the event';
COMMENT ON COLUMN outbox.aggregate_id IS 'identity of the aggregate that raised the event';
COMMENT ON COLUMN outbox.aggregate_version IS 'the aggregate''s version by the save that raised the event';
COMMENT ON COLUMN outbox.payload IS 'the exact bytes that are published';
COMMENT ON COLUMN outbox.content_type IS 'of payload';
COMMENT ON COLUMN outbox.cloud_event IS 'attributes of a CloudEvent of which payload is the data, as JSON: they leave as native headers; null: payload is all';
COMMENT ON COLUMN outbox.correlation_id IS 'what everything has in common that one request set off';
COMMENT ON COLUMN outbox.causation_id IS 'the message whose handling raised the event';
COMMENT ON COLUMN outbox.traceparent IS 'W3C Trace Context of the save';
COMMENT ON COLUMN outbox.tenant_id IS 'as it leaves: null where the target''s envelope does not name the tenant';
COMMENT ON COLUMN outbox.priority IS 'larger first between keys, never within a key';
COMMENT ON COLUMN outbox.status IS 'pending -> processing -> published | failed (tried again from available_at on) | abandoned (an operator decides)';
COMMENT ON COLUMN outbox.attempts IS 'claims that were spent; those of an outage are given back';
COMMENT ON COLUMN outbox.max_attempts IS 'after so many failures the row is abandoned; the processor''s setting at the last claim';
COMMENT ON COLUMN outbox.available_at IS 'not before';
COMMENT ON COLUMN outbox.last_attempt_at IS 'when the row was claimed last';
COMMENT ON COLUMN outbox.last_error IS 'the broker''s words at the last failure';
COMMENT ON COLUMN outbox.failure_class IS 'unavailable: nothing was handed over; transient: refused for now; unknown: may have arrived; permanent: cannot be sent; crash: killed its process';
COMMENT ON COLUMN outbox.locked_by IS 'worker that has claimed the row: host, process, random part, number';
COMMENT ON COLUMN outbox.locked_until IS 'the worker''s lease at the claim, for people; what counts is outbox_partitions.locked_until';
COMMENT ON COLUMN outbox.fence IS 'number of the lease under which the row was claimed';
COMMENT ON COLUMN outbox.claim_id IS 'number of the claim; whoever writes back must name it';
COMMENT ON COLUMN outbox.losses IS 'claims in a row that nobody settled: crashes and lost leases';
COMMENT ON COLUMN outbox.held IS 'abandoned, and the rows of its key behind it wait for an operator';
COMMENT ON COLUMN outbox.occurred_at IS 'when the event was raised';
COMMENT ON COLUMN outbox.created_at IS 'when the row was stored, by this database''s clock';
COMMENT ON COLUMN outbox.published_at IS 'when the broker''s acknowledgement was written back';
COMMENT ON COLUMN outbox.expires_at IS 'from when on housekeeping may remove the row';
COMMENT ON COLUMN outbox.finished_at IS 'when the row was published or abandoned; null: it still counts for the order of its key';

CREATE FUNCTION outbox_refuse_transition() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'outbox: row % cannot go from % to %', OLD.seq, OLD.status, NEW.status
        USING ERRCODE = 'check_violation';
END
$$;

-- AFTER, as before an update the row would be locked for the trigger first, with a
-- record of its own in the log, even where the condition keeps it from running.
CREATE TRIGGER outbox_life_cycle AFTER UPDATE OF status ON outbox FOR EACH ROW
    WHEN (OLD.status <> NEW.status AND (OLD.status, NEW.status) NOT IN (
        ('pending', 'processing'), ('pending', 'abandoned'),
        ('processing', 'published'), ('processing', 'failed'), ('processing', 'abandoned'), ('processing', 'pending'),
        ('failed', 'pending'), ('failed', 'abandoned'),
        ('abandoned', 'pending')))
    EXECUTE FUNCTION outbox_refuse_transition();

CREATE TABLE outbox_partitions (
    target_broker text NOT NULL,
    partition     integer NOT NULL,
    locked_by     text,
    fence         bigint NOT NULL DEFAULT 0,
    locked_until  timestamptz,
    claimed_below bigint NOT NULL DEFAULT 0,
    changes       bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (target_broker, partition)
) WITH (fillfactor = 50);

COMMENT ON TABLE outbox_partitions IS 'Which worker publishes which partition, and until when. The one place that decides.';

CREATE TABLE outbox_workers (
    worker        text NOT NULL,
    target_broker text NOT NULL,
    seen_until    timestamptz NOT NULL,
    PRIMARY KEY (worker, target_broker)
);

COMMENT ON COLUMN outbox_partitions.claimed_below IS 'no row of this partition from this seq on was ever claimed';
COMMENT ON COLUMN outbox_partitions.changes IS 'how often an operator changed rows of this partition';
COMMENT ON TABLE outbox_workers IS 'Workers that are alive; a worker''s share is the partitions divided by their number.';

CREATE TABLE outbox_settings (
    name  text PRIMARY KEY,
    value text NOT NULL
);

COMMENT ON TABLE outbox_settings IS 'Properties of this database, such as the number of partitions.';

CREATE TABLE outbox_jobs (
    name   text PRIMARY KEY,
    due_at timestamptz NOT NULL
);

COMMENT ON TABLE outbox_jobs IS 'Housekeeping that one process at a time does.';

CREATE TABLE outbox_actions (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor  text NOT NULL,
    action text NOT NULL CHECK (action IN ('retry', 'abandon', 'skip', 'purge')),
    filter jsonb NOT NULL,
    rows   bigint NOT NULL
);

COMMENT ON TABLE outbox_actions IS 'What operators did to rows of outbox: who, when, to which.';

CREATE TABLE outbox_published (
    target_broker text NOT NULL,
    slot          integer NOT NULL,
    n             bigint NOT NULL,
    retries       bigint NOT NULL,
    PRIMARY KEY (target_broker, slot)
) WITH (fillfactor = 50);

COMMENT ON COLUMN outbox_published.retries IS 'attempts at these rows beyond the first of each';
COMMENT ON TABLE outbox_published IS 'How many rows were ever published, also those that are removed by now; the slots keep workers out of each other''s way.';

CREATE SEQUENCE outbox_fence_seq CACHE 1;
CREATE SEQUENCE outbox_claim_seq CACHE 1;
