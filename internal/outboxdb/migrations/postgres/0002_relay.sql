-- tolerates: 2
-- Builds of the first design would find none of their tables.
--
-- The tables of the second design. Those of the first stand aside until what they
-- have is taken over.
ALTER TABLE outbox RENAME TO outbox_first;
ALTER TABLE outbox_partitions RENAME TO outbox_first_partitions;
ALTER TABLE outbox_workers RENAME TO outbox_first_workers;
ALTER TABLE outbox_published RENAME TO outbox_first_published;
ALTER SEQUENCE outbox_seq_seq RENAME TO outbox_first_seq_seq;
-- Indexes have names of their own, and tables may not have the same.
ALTER INDEX outbox_abandoned RENAME TO outbox_first_abandoned;
ALTER INDEX outbox_partitions_pkey RENAME TO outbox_first_partitions_pkey;

CREATE TABLE outbox_lanes (
    id     smallint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    target text NOT NULL UNIQUE
);

-- A lane's number, whether somebody has made the lane yet or not. Inserts call it
-- once in the life of a lane. It asks again after an insert that another one was
-- faster than; only a transaction that keeps an older snapshot can't see that one.
CREATE FUNCTION outbox_new_lane(name text) RETURNS smallint LANGUAGE plpgsql AS $$
DECLARE
    lane smallint;
BEGIN
    INSERT INTO outbox_lanes (target) VALUES (name) ON CONFLICT (target) DO NOTHING RETURNING id INTO lane;
    IF lane IS NULL THEN
        SELECT id INTO lane FROM outbox_lanes WHERE target = name;
    END IF;
    RETURN lane;
END
$$;

COMMENT ON TABLE outbox_lanes IS 'The targets that events leave for, by number.';
COMMENT ON COLUMN outbox_lanes.id IS 'what other tables call it';
COMMENT ON COLUMN outbox_lanes.target IS 'its name in the configuration';

-- No index has a text: an index entry of more than a third of a page is an error,
-- and a commit would fail for a long key.
CREATE TABLE outbox_messages (
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

COMMENT ON TABLE outbox_messages IS 'Events with all that leaves, one row per event and target: inserted once, never updated, and removed by housekeeping.';
COMMENT ON COLUMN outbox_messages.seq IS 'insertion order, which is commit order per aggregate';
COMMENT ON COLUMN outbox_messages.lane IS 'which target this row is for, in outbox_lanes';
COMMENT ON COLUMN outbox_messages.part IS 'hash bucket of partition_key; its owner is in outbox_partitions';
COMMENT ON COLUMN outbox_messages.id IS 'UUIDv7 of this row';
COMMENT ON COLUMN outbox_messages.message_id IS 'the event''s id: equal in all its rows and on every attempt';
COMMENT ON COLUMN outbox_messages.stream IS 'the aggregate''s stream, <context>::<aggregate>-<id>';
COMMENT ON COLUMN outbox_messages.stream_category IS '<context>::<aggregate>';
COMMENT ON COLUMN outbox_messages.topic IS 'destination without the broker''s prefix; null: the category with . for ::';
COMMENT ON COLUMN outbox_messages.partition_key IS 'rows of one key, category, topic and target are published in the order of seq';
COMMENT ON COLUMN outbox_messages.message_type IS '<Context>.<Event>.v<version>';
COMMENT ON COLUMN outbox_messages.aggregate_type IS 'kind of the aggregate that raised the event';
COMMENT ON COLUMN outbox_messages.aggregate_id IS 'identity of the aggregate that raised the event';
COMMENT ON COLUMN outbox_messages.aggregate_version IS 'the aggregate''s version by the save that raised the event';
COMMENT ON COLUMN outbox_messages.payload IS 'the exact bytes that are published';
COMMENT ON COLUMN outbox_messages.content_type IS 'of payload';
COMMENT ON COLUMN outbox_messages.cloud_event IS 'attributes of a CloudEvent of which payload is the data, as JSON: they leave as native headers; null: payload is all';
COMMENT ON COLUMN outbox_messages.correlation_id IS 'what everything has in common that one request set off';
COMMENT ON COLUMN outbox_messages.causation_id IS 'the message whose handling raised the event';
COMMENT ON COLUMN outbox_messages.tenant_id IS 'as it leaves: null where the target''s envelope does not name the tenant';
COMMENT ON COLUMN outbox_messages.traceparent IS 'W3C Trace Context of the save';
COMMENT ON COLUMN outbox_messages.priority IS 'above 0 first, below 0 last between keys, never within a key';
COMMENT ON COLUMN outbox_messages.occurred_at IS 'when the event was raised';
COMMENT ON COLUMN outbox_messages.created_at IS 'when the row was stored, by this database''s clock';
COMMENT ON COLUMN outbox_messages.key IS 'as in outbox_queue; null: published by the first design, as the next two';
COMMENT ON COLUMN outbox_messages.topic_hash IS 'as topic in outbox_queue';
COMMENT ON COLUMN outbox_messages.bytes IS 'as in outbox_queue';

-- A row is there as long as its event is undelivered. What is vacuumed is what was
-- delivered: a number of rows, whatever the size of the backlog. The end isn't cut
-- off, as that locks the table, and it is needed again at once.
CREATE TABLE outbox_queue (
    seq       bigint NOT NULL,
    key       bigint NOT NULL,
    topic     bigint NOT NULL,
    due_at    timestamptz,
    failed_at timestamptz,
    bytes     integer NOT NULL,
    lane      smallint NOT NULL,
    part      smallint NOT NULL,
    class     smallint NOT NULL DEFAULT 0 CHECK (class BETWEEN -1 AND 1),
    attempts  smallint NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    losses    smallint NOT NULL DEFAULT 0 CHECK (losses >= 0),
    held      boolean NOT NULL DEFAULT false,
    failure   text CHECK (failure IN ('unavailable', 'transient', 'unknown', 'permanent', 'crash')),
    error     text CHECK (length(error) <= 2048),
    PRIMARY KEY (lane, part, seq)
) WITH (fillfactor = 100, vacuum_truncate = false,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_analyze_scale_factor = 0.5, autovacuum_analyze_threshold = 100000);

CREATE INDEX outbox_queue_key ON outbox_queue (key, seq);
CREATE INDEX outbox_queue_due ON outbox_queue (lane, due_at, seq) WHERE due_at IS NOT NULL;
CREATE INDEX outbox_queue_first ON outbox_queue (lane, part, seq) WHERE class > 0;

COMMENT ON TABLE outbox_queue IS 'Events that are not delivered yet. A row leaves when its event was published or given up.';
COMMENT ON COLUMN outbox_queue.seq IS 'of outbox_messages';
COMMENT ON COLUMN outbox_queue.key IS 'hash of target, topic, category and partition key: rows of one key leave in the order of seq';
COMMENT ON COLUMN outbox_queue.topic IS 'hash of the topic';
COMMENT ON COLUMN outbox_queue.due_at IS 'failed: not before; past: somebody has to look at the key again';
COMMENT ON COLUMN outbox_queue.failed_at IS 'when the last failure was written';
COMMENT ON COLUMN outbox_queue.bytes IS 'about what it takes in memory and on the wire';
COMMENT ON COLUMN outbox_queue.lane IS 'which target it is for, in outbox_lanes';
COMMENT ON COLUMN outbox_queue.part IS 'hash bucket of its partition key';
COMMENT ON COLUMN outbox_queue.class IS 'the sign of its priority';
COMMENT ON COLUMN outbox_queue.attempts IS 'attempts that were spent; those of an outage are not counted';
COMMENT ON COLUMN outbox_queue.losses IS 'claims in a row that nobody settled: crashes and lost leases';
COMMENT ON COLUMN outbox_queue.held IS 'given up, and its key waits for an operator';
COMMENT ON COLUMN outbox_queue.failure IS 'unavailable: nothing was handed over; transient: refused for now; unknown: may have arrived; permanent: cannot be sent; crash: killed its process';
COMMENT ON COLUMN outbox_queue.error IS 'the broker''s words at the last failure';

-- An ANALYZE keeps every dead row alive for as long as it runs. No plan here needs
-- it: it is made rare, and its sample a tenth.
DO $$
DECLARE
    name text;
BEGIN
    FOR name IN SELECT attname FROM pg_attribute WHERE attrelid = 'outbox_queue'::regclass AND attnum > 0 LOOP
        EXECUTE format('ALTER TABLE outbox_queue ALTER COLUMN %I SET STATISTICS 10', name);
    END LOOP;
    FOR name IN SELECT attname FROM pg_attribute WHERE attrelid = 'outbox_messages'::regclass AND attnum > 0 LOOP
        EXECUTE format('ALTER TABLE outbox_messages ALTER COLUMN %I SET STATISTICS 10', name);
    END LOOP;
END
$$;

CREATE TABLE outbox_members (
    member  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lane    smallint NOT NULL,
    name    text NOT NULL,
    since   timestamptz NOT NULL DEFAULT clock_timestamp(),
    until   timestamptz NOT NULL,
    healthy boolean NOT NULL DEFAULT true,
    trouble text
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

COMMENT ON TABLE outbox_members IS 'Who publishes for a target: a process from when it joins until it leaves or is taken to be dead.';
COMMENT ON COLUMN outbox_members.member IS 'its number, which is never used twice';
COMMENT ON COLUMN outbox_members.lane IS 'for which target, in outbox_lanes';
COMMENT ON COLUMN outbox_members.name IS 'host, process, random part';
COMMENT ON COLUMN outbox_members.since IS 'when it joined';
COMMENT ON COLUMN outbox_members.until IS 'from then on others may end it';
COMMENT ON COLUMN outbox_members.healthy IS 'whether it reaches its broker';
COMMENT ON COLUMN outbox_members.trouble IS 'why it does not, in its words';

CREATE TABLE outbox_partitions (
    lane  smallint NOT NULL,
    part  smallint NOT NULL,
    owner bigint,
    PRIMARY KEY (lane, part)
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

COMMENT ON TABLE outbox_partitions IS 'Which member publishes which partition. The one place that decides.';
COMMENT ON COLUMN outbox_partitions.lane IS 'of which target, in outbox_lanes';
COMMENT ON COLUMN outbox_partitions.part IS 'from 0 to the number of partitions - 1';
COMMENT ON COLUMN outbox_partitions.owner IS 'number of the member; null: nobody';

CREATE TABLE outbox_claims (
    member bigint NOT NULL,
    n      bigint NOT NULL,
    at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    seqs   bigint[] NOT NULL,
    PRIMARY KEY (member, n)
) WITH (fillfactor = 50, vacuum_truncate = false, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- A token lives for as long as a call. Its numbers stay in its row: elsewhere they
-- would be rows and index entries of their own.
ALTER TABLE outbox_claims ALTER COLUMN seqs SET STORAGE MAIN;

COMMENT ON TABLE outbox_claims IS 'What members have in hand, a row per claim. Who deletes it decides about its events.';
COMMENT ON COLUMN outbox_claims.member IS 'whose';
COMMENT ON COLUMN outbox_claims.n IS 'which of its claims';
COMMENT ON COLUMN outbox_claims.at IS 'when it was made';
COMMENT ON COLUMN outbox_claims.seqs IS 'of outbox_queue';

CREATE TABLE outbox_log (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lane      smallint NOT NULL,
    member    bigint NOT NULL,
    n         bigint NOT NULL,
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    published integer NOT NULL,
    retries   integer NOT NULL DEFAULT 0,
    low       bigint NOT NULL,
    high      bigint NOT NULL,
    seqs      bigint[] NOT NULL,
    attempts  smallint[]
) WITH (fillfactor = 100, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_analyze_scale_factor = 0.5);

ALTER TABLE outbox_log ALTER COLUMN seqs SET STORAGE MAIN;

COMMENT ON TABLE outbox_log IS 'What was published, a row per claim. Housekeeping removes events by it, and then the row.';
COMMENT ON COLUMN outbox_log.id IS 'in the order in which they were written, about';
COMMENT ON COLUMN outbox_log.lane IS 'to which target, in outbox_lanes';
COMMENT ON COLUMN outbox_log.member IS 'by whom';
COMMENT ON COLUMN outbox_log.n IS 'by which of its claims';
COMMENT ON COLUMN outbox_log.at IS 'when the broker''s acknowledgements were written back';
COMMENT ON COLUMN outbox_log.published IS 'how many';
COMMENT ON COLUMN outbox_log.retries IS 'how many attempts of the claim were not the first of their event';
COMMENT ON COLUMN outbox_log.low IS 'the lowest of seqs';
COMMENT ON COLUMN outbox_log.high IS 'the highest of seqs';
COMMENT ON COLUMN outbox_log.seqs IS 'of outbox_messages';
COMMENT ON COLUMN outbox_log.attempts IS 'of each; null: all at the first';

CREATE TABLE outbox_abandoned (
    seq             bigint PRIMARY KEY,
    lane            smallint NOT NULL,
    part            smallint NOT NULL,
    key             bigint NOT NULL,
    at              timestamptz NOT NULL DEFAULT clock_timestamp(),
    class           text,
    error           text CHECK (length(error) <= 2048),
    attempts        smallint NOT NULL,
    losses          smallint NOT NULL,
    maybe_delivered boolean NOT NULL
);

COMMENT ON TABLE outbox_abandoned IS 'Events that were given up. They are kept for operators, and hold nothing.';
COMMENT ON COLUMN outbox_abandoned.seq IS 'of outbox_messages';
COMMENT ON COLUMN outbox_abandoned.lane IS 'which target it was for, in outbox_lanes';
COMMENT ON COLUMN outbox_abandoned.part IS 'hash bucket of its partition key';
COMMENT ON COLUMN outbox_abandoned.key IS 'as in outbox_queue';
COMMENT ON COLUMN outbox_abandoned.at IS 'when it was given up';
COMMENT ON COLUMN outbox_abandoned.class IS 'as failure in outbox_queue; null: an operator has given up what never failed';
COMMENT ON COLUMN outbox_abandoned.error IS 'the broker''s words, or an operator''s name';
COMMENT ON COLUMN outbox_abandoned.attempts IS 'attempts that were spent';
COMMENT ON COLUMN outbox_abandoned.losses IS 'claims in a row that nobody settled';
COMMENT ON COLUMN outbox_abandoned.maybe_delivered IS 'whether it may have arrived all the same';
