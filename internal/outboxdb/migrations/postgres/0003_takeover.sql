-- tolerates: 3
-- There is no build that knows 2 and not 3, and one of the first design would find none of
-- its tables.
--
-- What the first design has stored moves into the tables of the second one, under
-- its old numbers; then the first one's tables go.

-- Whoever publishes by the first design would go on with rows that are gone.
DO $$
DECLARE
    owner record;
BEGIN
    SELECT string_agg(DISTINCT locked_by, ', ') AS names, max(locked_until) AS until INTO owner
    FROM outbox_first_partitions WHERE locked_until > clock_timestamp();
    IF owner.names IS NOT NULL THEN
        RAISE EXCEPTION 'outbox: engines of the earlier version are running, or ended less than a lease ago: %: stop all engines of this database and migrate again; after a crash, from % on', owner.names, owner.until
            USING ERRCODE = 'object_in_use';
    END IF;
END
$$;

-- The sum that outbox.KeyOf has: two FNV-1a of 32 bits over the same bytes.
CREATE FUNCTION outbox_takeover_hash(bytes bytea) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    a bigint := 2166136261;
    b bigint := 3421674724;
BEGIN
    FOR i IN 0 .. length(bytes) - 1 LOOP
        a := ((a # get_byte(bytes, i)) * 16777619) & 4294967295;
        b := ((b # get_byte(bytes, i)) * 16777619) & 4294967295;
    END LOOP;
    RETURN (a << 32) | b;
END
$$;

INSERT INTO outbox_lanes (target)
SELECT target_broker FROM outbox_first UNION SELECT target_broker FROM outbox_first_partitions
UNION SELECT target_broker FROM outbox_first_published
ON CONFLICT (target) DO NOTHING;

INSERT INTO outbox_partitions (lane, part)
SELECT l.id, p.partition FROM outbox_first_partitions AS p JOIN outbox_lanes AS l ON l.target = p.target_broker
ON CONFLICT DO NOTHING;

-- Keys are few where rows are many: each is hashed once.
CREATE TABLE outbox_takeover_keys AS
SELECT target_broker, topic, stream_category, partition_key,
    outbox_takeover_hash(convert_to(concat_ws(E'\x1f', target_broker, destination, stream_category, partition_key), 'UTF8')) AS key,
    outbox_takeover_hash(convert_to(destination, 'UTF8')) AS topic_hash
FROM (SELECT DISTINCT target_broker, topic, COALESCE(topic, replace(stream_category, '::', '.')) AS destination, stream_category, partition_key
    FROM outbox_first WHERE published_at IS NULL) AS k;

INSERT INTO outbox_messages (seq, lane, part, id, message_id, stream, stream_category, topic, partition_key, message_type,
    aggregate_type, aggregate_id, aggregate_version, payload, content_type, cloud_event, correlation_id, causation_id,
    tenant_id, traceparent, priority, occurred_at, created_at, key, topic_hash, bytes)
OVERRIDING SYSTEM VALUE
SELECT o.seq, l.id, o.partition, o.id, o.message_id, o.stream, o.stream_category, o.topic, o.partition_key, o.message_type,
    o.aggregate_type, o.aggregate_id, o.aggregate_version, o.payload, o.content_type, o.cloud_event, o.correlation_id, o.causation_id,
    o.tenant_id, o.traceparent, o.priority, o.occurred_at, o.created_at, k.key, k.topic_hash,
    CASE WHEN k.key IS NOT NULL THEN 256 + octet_length(o.payload) + octet_length(concat(o.partition_key, o.cloud_event, o.stream, o.stream_category, o.topic, o.message_type, o.aggregate_id, o.correlation_id, o.causation_id, o.tenant_id, o.traceparent)) END
FROM outbox_first AS o
JOIN outbox_lanes AS l ON l.target = o.target_broker
LEFT JOIN outbox_takeover_keys AS k ON o.published_at IS NULL AND k.target_broker = o.target_broker
    AND k.topic IS NOT DISTINCT FROM o.topic AND k.stream_category = o.stream_category AND k.partition_key = o.partition_key
ORDER BY o.seq;

SELECT setval(pg_get_serial_sequence('outbox_messages', 'seq'), last_value, is_called) FROM outbox_first_seq_seq;

-- What is not finished, and what is held. A row that somebody had in hand has lost
-- that claim.
INSERT INTO outbox_queue (lane, part, seq, key, topic, class, bytes, attempts, losses, held, due_at, failure, error, failed_at)
SELECT b.lane, b.part, b.seq, b.key, b.topic_hash, sign(b.priority), b.bytes,
    least(greatest(o.attempts - o.losses - (o.status = 'processing')::int, 0), 32767), least(o.losses + (o.status = 'processing')::int, 32767), o.held,
    CASE WHEN o.status = 'failed' OR o.status = 'pending' AND o.available_at > clock_timestamp() THEN o.available_at END,
    o.failure_class, o.last_error, CASE WHEN o.failure_class IS NOT NULL THEN o.last_attempt_at END
FROM outbox_first AS o JOIN outbox_messages AS b ON b.seq = o.seq
WHERE o.finished_at IS NULL
ORDER BY b.lane, b.part, b.seq;

INSERT INTO outbox_abandoned (seq, lane, part, key, at, class, error, attempts, losses, maybe_delivered)
SELECT b.seq, b.lane, b.part, b.key, o.finished_at, o.failure_class, o.last_error, least(greatest(o.attempts - o.losses, 0), 32767), least(o.losses, 32767),
    o.last_attempt_at IS NOT NULL AND NOT (o.attempts = 1 AND o.failure_class IS NOT DISTINCT FROM 'permanent')
FROM outbox_first AS o JOIN outbox_messages AS b ON b.seq = o.seq
WHERE o.finished_at IS NOT NULL AND o.published_at IS NULL;

-- Published rows: those of a minute together, at most 1,000.
INSERT INTO outbox_log (lane, member, n, at, published, seqs, attempts, retries, low, high)
SELECT lane, 0, 0, max(published_at), count(*), array_agg(seq ORDER BY seq),
    CASE WHEN max(tried) > 1 THEN array_agg(tried ORDER BY seq) END, sum(tried - 1), min(seq), max(seq)
FROM (SELECT l.id AS lane, o.seq, o.published_at, least(greatest(o.attempts - o.losses, 1), 32767)::smallint AS tried, date_trunc('minute', o.published_at) AS minute,
        (row_number() OVER (PARTITION BY l.id, date_trunc('minute', o.published_at) ORDER BY o.published_at, o.seq) - 1) / 1000 AS nth
    FROM outbox_first AS o JOIN outbox_lanes AS l ON l.target = o.target_broker
    WHERE o.published_at IS NOT NULL) AS p
GROUP BY lane, minute, nth
ORDER BY max(published_at);

-- What was ever published is counted: the rows of the log up to 'counted' among it.
CREATE TABLE outbox_counts (
    lane      smallint PRIMARY KEY,
    published bigint NOT NULL,
    retries   bigint NOT NULL
);

COMMENT ON TABLE outbox_counts IS 'How many rows were ever published, but for those in the log behind the setting counted. Housekeeping adds to it, nobody else.';
COMMENT ON COLUMN outbox_counts.retries IS 'attempts at these rows beyond the first of each';

INSERT INTO outbox_counts (lane, published, retries)
SELECT l.id, sum(p.n), sum(p.retries) FROM outbox_first_published AS p JOIN outbox_lanes AS l ON l.target = p.target_broker GROUP BY l.id;

INSERT INTO outbox_settings (name, value) SELECT 'counted', COALESCE(max(id), 0) FROM outbox_log
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- As it was when something was published, and abandoned, last: the engines write it
-- anew when they start.
INSERT INTO outbox_settings (name, value)
SELECT 'retention', json_build_object(
    'published', (SELECT extract(epoch FROM expires_at - published_at)::float8 FROM outbox_first WHERE published_at IS NOT NULL ORDER BY seq DESC LIMIT 1),
    'abandoned', (SELECT extract(epoch FROM expires_at - finished_at)::float8 FROM outbox_first WHERE finished_at IS NOT NULL AND published_at IS NULL ORDER BY seq DESC LIMIT 1),
    'max_attempts', (SELECT max_attempts FROM outbox_first ORDER BY seq DESC LIMIT 1))
WHERE EXISTS (SELECT 1 FROM outbox_first WHERE finished_at IS NOT NULL)
ON CONFLICT (name) DO NOTHING;

DROP TABLE outbox_takeover_keys, outbox_first, outbox_first_partitions, outbox_first_workers, outbox_first_published;
DROP FUNCTION outbox_takeover_hash(bytea);
DROP FUNCTION outbox_refuse_transition();
DROP SEQUENCE outbox_fence_seq, outbox_claim_seq;

-- Which log row has a seq; housekeeping and people look for held and for abandoned rows.
CREATE INDEX outbox_log_high ON outbox_log (lane, high, low);
CREATE INDEX outbox_queue_held ON outbox_queue (lane, seq) WHERE held;
CREATE INDEX outbox_abandoned_at ON outbox_abandoned (at, seq);

-- Plans of people's questions are made for what there is now. Of empty tables they
-- would be made as if these stayed empty.
DO $$
BEGIN
    IF EXISTS (SELECT 1 FROM outbox_messages) THEN
        ANALYZE outbox_messages, outbox_log, outbox_lanes;
    END IF;
END
$$;

-- For people. What is looked up elsewhere is a subquery, so that it costs nothing
-- where its column isn't asked for.
CREATE VIEW outbox AS
SELECT
    b.seq, b.id, b.message_id, l.target AS target_broker, b.stream, b.stream_category, b.topic,
    b.partition_key, b.part::integer AS partition, b.message_type, b.aggregate_type, b.aggregate_id, b.aggregate_version,
    b.payload, b.content_type, b.cloud_event, b.correlation_id, b.causation_id, b.tenant_id, b.traceparent, b.priority,
    CASE
        WHEN q.seq IS NULL THEN CASE WHEN a.seq IS NULL THEN 'published' ELSE 'abandoned' END
        WHEN q.held THEN 'abandoned'
        WHEN EXISTS (SELECT 1 FROM outbox_partitions AS p JOIN outbox_claims AS c ON c.member = p.owner
            WHERE p.lane = b.lane AND p.part = b.part AND b.seq = ANY (c.seqs)) THEN 'processing'
        WHEN q.attempts > 0 AND q.due_at IS NOT NULL THEN 'failed'
        ELSE 'pending'
    END AS status,
    CASE WHEN q.seq IS NULL AND a.seq IS NULL THEN COALESCE((
        SELECT g.attempts[array_position(g.seqs, b.seq)] FROM outbox_log AS g
        WHERE g.lane = b.lane AND g.high >= b.seq AND g.low <= b.seq AND b.seq = ANY (g.seqs) ORDER BY g.high LIMIT 1), 1)
        ELSE COALESCE(q.attempts, a.attempts) END::integer AS attempts,
    COALESCE((SELECT (s.value::jsonb ->> 'max_attempts')::integer FROM outbox_settings AS s WHERE s.name = 'retention'), 5) AS max_attempts,
    COALESCE(q.due_at, b.created_at) AS available_at,
    CASE
        WHEN a.seq IS NOT NULL THEN a.at
        WHEN q.seq IS NULL THEN (SELECT g.at FROM outbox_log AS g
            WHERE g.lane = b.lane AND g.high >= b.seq AND g.low <= b.seq AND b.seq = ANY (g.seqs) ORDER BY g.high LIMIT 1)
        ELSE COALESCE((SELECT c.at FROM outbox_partitions AS p JOIN outbox_claims AS c ON c.member = p.owner
            WHERE p.lane = b.lane AND p.part = b.part AND b.seq = ANY (c.seqs) LIMIT 1), q.failed_at)
    END AS last_attempt_at,
    COALESCE(q.error, a.error) AS last_error,
    COALESCE(q.failure, a.class) AS failure_class,
    CASE WHEN q.seq IS NOT NULL THEN (SELECT m.name FROM outbox_partitions AS p JOIN outbox_claims AS c ON c.member = p.owner JOIN outbox_members AS m ON m.member = c.member
        WHERE p.lane = b.lane AND p.part = b.part AND b.seq = ANY (c.seqs) LIMIT 1) END AS locked_by,
    CASE WHEN q.seq IS NOT NULL THEN (SELECT m.until FROM outbox_partitions AS p JOIN outbox_claims AS c ON c.member = p.owner JOIN outbox_members AS m ON m.member = c.member
        WHERE p.lane = b.lane AND p.part = b.part AND b.seq = ANY (c.seqs) LIMIT 1) END AS locked_until,
    CASE WHEN q.seq IS NOT NULL THEN (SELECT c.member FROM outbox_partitions AS p JOIN outbox_claims AS c ON c.member = p.owner
        WHERE p.lane = b.lane AND p.part = b.part AND b.seq = ANY (c.seqs) LIMIT 1) END AS fence,
    CASE WHEN q.seq IS NOT NULL THEN (SELECT c.n FROM outbox_partitions AS p JOIN outbox_claims AS c ON c.member = p.owner
        WHERE p.lane = b.lane AND p.part = b.part AND b.seq = ANY (c.seqs) LIMIT 1) END AS claim_id,
    COALESCE(q.losses, a.losses, 0)::integer AS losses,
    COALESCE(q.held, false) AS held,
    b.occurred_at, b.created_at,
    CASE WHEN q.seq IS NULL AND a.seq IS NULL THEN (SELECT g.at FROM outbox_log AS g
        WHERE g.lane = b.lane AND g.high >= b.seq AND g.low <= b.seq AND b.seq = ANY (g.seqs) ORDER BY g.high LIMIT 1) END AS published_at,
    CASE
        WHEN a.seq IS NOT NULL THEN a.at + (SELECT make_interval(secs => (s.value::jsonb ->> 'abandoned')::float8) FROM outbox_settings AS s WHERE s.name = 'retention')
        WHEN q.seq IS NULL THEN (SELECT g.at FROM outbox_log AS g
            WHERE g.lane = b.lane AND g.high >= b.seq AND g.low <= b.seq AND b.seq = ANY (g.seqs) ORDER BY g.high LIMIT 1)
            + (SELECT make_interval(secs => (s.value::jsonb ->> 'published')::float8) FROM outbox_settings AS s WHERE s.name = 'retention')
    END AS expires_at
FROM outbox_messages AS b
LEFT JOIN outbox_queue AS q ON q.lane = b.lane AND q.part = b.part AND q.seq = b.seq
LEFT JOIN outbox_abandoned AS a ON a.seq = b.seq
JOIN outbox_lanes AS l ON l.id = b.lane;

COMMENT ON VIEW outbox IS 'Events between the transaction that made them and the brokers they leave for, one row per event and target broker: for people and tools. The relay never reads it.';
