-- tolerates: 3
-- There is no build that knows 2 and not 3, and one of the first design would find none of
-- its tables.
--
-- What the first design has stored moves into the tables of the second one, under
-- its old numbers; then the first one's tables go.

-- Whoever publishes by the first design would go on with rows that are gone. SQLite
-- raises an error of one's own in triggers only.
CREATE TABLE outbox_takeover_refused (names TEXT);
CREATE TRIGGER outbox_takeover_refuse BEFORE INSERT ON outbox_takeover_refused WHEN NEW.names IS NOT NULL
BEGIN
    SELECT RAISE(ABORT, 'outbox: engines of the earlier version are running, or ended less than a lease ago: stop all engines of this database and migrate again; after a crash, half a minute later. outbox_partitions says whose partitions are locked, and until when');
END;
INSERT INTO outbox_takeover_refused
SELECT group_concat(locked_by) FROM outbox_first_partitions WHERE locked_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now');
DROP TABLE outbox_takeover_refused;

INSERT INTO outbox_lanes (target)
SELECT target_broker FROM outbox_first UNION SELECT target_broker FROM outbox_first_partitions
UNION SELECT target_broker FROM outbox_first_published;

INSERT OR IGNORE INTO outbox_partitions (lane, part)
SELECT l.id, p.partition FROM outbox_first_partitions AS p JOIN outbox_lanes AS l ON l.target = p.target_broker;

-- Keys are few where rows are many: each is hashed once, to the sum that outbox.KeyOf
-- has: two FNV-1a of 32 bits over the same bytes. SQLite has no XOR: it is OR less AND.
CREATE TABLE outbox_takeover_keys AS
SELECT target_broker, topic, stream_category, partition_key,
    (
        WITH RECURSIVE t(h) AS (SELECT hex(CAST(target_broker || char(31) || COALESCE(topic, replace(stream_category, '::', '.')) || char(31) || stream_category || char(31) || partition_key AS BLOB))),
        f(h, i, x, a, b) AS (
            SELECT h, 0, (instr('0123456789ABCDEF', substr(h, 1, 1)) - 1) * 16 + instr('0123456789ABCDEF', substr(h, 2, 1)) - 1, 2166136261, 3421674724 FROM t
            UNION ALL
            SELECT f.h, f.i + 1, (instr('0123456789ABCDEF', substr(f.h, 2 * (f.i + 1) + 1, 1)) - 1) * 16 + instr('0123456789ABCDEF', substr(f.h, 2 * (f.i + 1) + 2, 1)) - 1,
                (((f.a | f.x) - (f.a & f.x)) * 16777619) & 4294967295, (((f.b | f.x) - (f.b & f.x)) * 16777619) & 4294967295
            FROM f WHERE f.i < length(f.h) / 2)
        SELECT (a << 32) | b FROM f WHERE i = length(h) / 2) AS key,
    (
        WITH RECURSIVE t(h) AS (SELECT hex(CAST(COALESCE(topic, replace(stream_category, '::', '.')) AS BLOB))),
        f(h, i, x, a, b) AS (
            SELECT h, 0, (instr('0123456789ABCDEF', substr(h, 1, 1)) - 1) * 16 + instr('0123456789ABCDEF', substr(h, 2, 1)) - 1, 2166136261, 3421674724 FROM t
            UNION ALL
            SELECT f.h, f.i + 1, (instr('0123456789ABCDEF', substr(f.h, 2 * (f.i + 1) + 1, 1)) - 1) * 16 + instr('0123456789ABCDEF', substr(f.h, 2 * (f.i + 1) + 2, 1)) - 1,
                (((f.a | f.x) - (f.a & f.x)) * 16777619) & 4294967295, (((f.b | f.x) - (f.b & f.x)) * 16777619) & 4294967295
            FROM f WHERE f.i < length(f.h) / 2)
        SELECT (a << 32) | b FROM f WHERE i = length(h) / 2) AS topic_hash
FROM (SELECT DISTINCT target_broker, topic, stream_category, partition_key FROM outbox_first WHERE published_at IS NULL) AS k;
CREATE INDEX outbox_takeover_key ON outbox_takeover_keys (partition_key, target_broker, stream_category);

INSERT INTO outbox_messages (seq, lane, part, id, message_id, stream, stream_category, topic, partition_key, message_type,
    aggregate_type, aggregate_id, aggregate_version, payload, content_type, cloud_event, correlation_id, causation_id,
    tenant_id, traceparent, priority, occurred_at, created_at, key, topic_hash, bytes)
SELECT o.seq, l.id, o.partition, o.id, o.message_id, o.stream, o.stream_category, o.topic, o.partition_key, o.message_type,
    o.aggregate_type, o.aggregate_id, o.aggregate_version, o.payload, o.content_type, o.cloud_event, o.correlation_id, o.causation_id,
    o.tenant_id, o.traceparent, o.priority, o.occurred_at, o.created_at, k.key, k.topic_hash,
    CASE WHEN k.key IS NOT NULL THEN 256 + length(o.payload) + length(CAST(o.partition_key || COALESCE(o.cloud_event, '') || o.stream || o.stream_category || COALESCE(o.topic, '') || o.message_type || o.aggregate_id || COALESCE(o.correlation_id, '') || COALESCE(o.causation_id, '') || COALESCE(o.tenant_id, '') || COALESCE(o.traceparent, '') AS BLOB)) END
FROM outbox_first AS o
JOIN outbox_lanes AS l ON l.target = o.target_broker
LEFT JOIN outbox_takeover_keys AS k ON o.published_at IS NULL AND k.target_broker = o.target_broker
    AND k.topic IS o.topic AND k.stream_category = o.stream_category AND k.partition_key = o.partition_key
ORDER BY o.seq;

-- Numbers go on, also behind rows that were removed.
DELETE FROM sqlite_sequence WHERE name = 'outbox_messages';
INSERT INTO sqlite_sequence (name, seq) SELECT 'outbox_messages', seq FROM sqlite_sequence WHERE name = 'outbox_first';

-- What is not finished, and what is held. A row that somebody had in hand has lost
-- that claim.
INSERT INTO outbox_queue (lane, part, seq, key, topic, class, bytes, attempts, losses, held, due_at, failure, error, failed_at)
SELECT b.lane, b.part, b.seq, b.key, b.topic_hash, (b.priority > 0) - (b.priority < 0), b.bytes,
    max(o.attempts - o.losses - (o.status = 'processing'), 0), o.losses + (o.status = 'processing'), o.held,
    CASE WHEN o.status = 'failed' OR o.status = 'pending' AND o.available_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now') THEN o.available_at END,
    o.failure_class, o.last_error, CASE WHEN o.failure_class IS NOT NULL THEN o.last_attempt_at END
FROM outbox_first AS o JOIN outbox_messages AS b ON b.seq = o.seq
WHERE o.finished_at IS NULL
ORDER BY b.lane, b.part, b.seq;

INSERT INTO outbox_abandoned (seq, lane, part, key, at, class, error, attempts, losses, maybe_delivered)
SELECT b.seq, b.lane, b.part, b.key, o.finished_at, o.failure_class, o.last_error, max(o.attempts - o.losses, 0), o.losses,
    o.last_attempt_at IS NOT NULL AND NOT (o.attempts = 1 AND o.failure_class IS 'permanent')
FROM outbox_first AS o JOIN outbox_messages AS b ON b.seq = o.seq
WHERE o.finished_at IS NOT NULL AND o.published_at IS NULL;

-- Published rows: those of a minute together, at most 1,000.
INSERT INTO outbox_log (lane, member, n, at, published, seqs, attempts, retries, low, high)
SELECT lane, 0, 0, max(published_at), count(*), json_group_array(seq),
    CASE WHEN max(tried) > 1 THEN json_group_array(tried) END, sum(tried - 1), min(seq), max(seq)
FROM (SELECT l.id AS lane, o.seq, o.published_at, max(o.attempts - o.losses, 1) AS tried, substr(o.published_at, 1, 16) AS minute,
        (row_number() OVER (PARTITION BY l.id, substr(o.published_at, 1, 16) ORDER BY o.published_at, o.seq) - 1) / 1000 AS nth
    FROM outbox_first AS o JOIN outbox_lanes AS l ON l.target = o.target_broker
    WHERE o.published_at IS NOT NULL) AS p
GROUP BY lane, minute, nth
ORDER BY max(published_at);

-- How many rows were ever published, but for those in the log behind the setting
-- 'counted'. Housekeeping adds to it, nobody else.
CREATE TABLE outbox_counts (
    lane      INTEGER PRIMARY KEY,
    published INTEGER NOT NULL,
    retries   INTEGER NOT NULL -- attempts at these rows beyond the first of each
);

INSERT INTO outbox_counts (lane, published, retries)
SELECT l.id, sum(p.n), sum(p.retries) FROM outbox_first_published AS p JOIN outbox_lanes AS l ON l.target = p.target_broker GROUP BY l.id;

INSERT OR REPLACE INTO outbox_settings (name, value) SELECT 'counted', CAST(COALESCE(max(id), 0) AS TEXT) FROM outbox_log;

-- As it was when something was published, and abandoned, last: the engines write it
-- anew when they start.
INSERT OR IGNORE INTO outbox_settings (name, value)
SELECT 'retention', json_object(
    'published', (SELECT (julianday(expires_at) - julianday(published_at)) * 86400.0 FROM outbox_first WHERE published_at IS NOT NULL ORDER BY seq DESC LIMIT 1),
    'abandoned', (SELECT (julianday(expires_at) - julianday(finished_at)) * 86400.0 FROM outbox_first WHERE finished_at IS NOT NULL AND published_at IS NULL ORDER BY seq DESC LIMIT 1),
    'max_attempts', (SELECT max_attempts FROM outbox_first ORDER BY seq DESC LIMIT 1))
WHERE EXISTS (SELECT 1 FROM outbox_first WHERE finished_at IS NOT NULL);

DROP TABLE outbox_takeover_keys;
DROP TABLE outbox_first;
DROP TABLE outbox_first_partitions;
DROP TABLE outbox_first_workers;
DROP TABLE outbox_first_published;
DROP TABLE outbox_sequences;

-- Which log row has a seq; people look for held and housekeeping for abandoned rows.
CREATE INDEX outbox_log_high ON outbox_log (lane, high, low);
CREATE INDEX outbox_queue_held ON outbox_queue (lane, seq) WHERE held;
CREATE INDEX outbox_abandoned_at ON outbox_abandoned (at, seq);

-- Events between the transaction that made them and the brokers they leave for, one row
-- per event and target broker: for people and tools. The relay never reads it. What is
-- looked up elsewhere is a subquery, so that it costs nothing where its column isn't
-- asked for.
CREATE VIEW outbox AS
SELECT
    b.seq, b.id, b.message_id, l.target AS target_broker, b.stream, b.stream_category, b.topic,
    b.partition_key, b.part AS partition, b.message_type, b.aggregate_type, b.aggregate_id, b.aggregate_version,
    b.payload, b.content_type, b.cloud_event, b.correlation_id, b.causation_id, b.tenant_id, b.traceparent, b.priority,
    CASE
        WHEN q.seq IS NULL THEN CASE WHEN a.seq IS NULL THEN 'published' ELSE 'abandoned' END
        WHEN q.held THEN 'abandoned'
        WHEN EXISTS (SELECT 1 FROM outbox_partitions AS p JOIN outbox_claims AS c ON c.member = p.owner
        WHERE p.lane = b.lane AND p.part = b.part AND EXISTS (SELECT 1 FROM json_each(c.seqs) AS v WHERE v.value = b.seq) LIMIT 1) THEN 'processing'
        WHEN q.attempts > 0 AND q.due_at IS NOT NULL THEN 'failed'
        ELSE 'pending'
    END AS status,
    CASE WHEN q.seq IS NULL AND a.seq IS NULL THEN COALESCE((
        SELECT (SELECT t.value FROM json_each(g.attempts) AS t JOIN json_each(g.seqs) AS v ON v.key = t.key WHERE v.value = b.seq) FROM outbox_log AS g
        WHERE g.lane = b.lane AND g.high >= b.seq AND g.low <= b.seq AND EXISTS (SELECT 1 FROM json_each(g.seqs) AS v WHERE v.value = b.seq) ORDER BY g.high LIMIT 1), 1)
        ELSE COALESCE(q.attempts, a.attempts) END AS attempts,
    COALESCE((SELECT json_extract(s.value, '$.max_attempts') FROM outbox_settings AS s WHERE s.name = 'retention'), 5) AS max_attempts,
    COALESCE(q.due_at, b.created_at) AS available_at,
    CASE
        WHEN a.seq IS NOT NULL THEN a.at
        WHEN q.seq IS NULL THEN (SELECT g.at FROM outbox_log AS g
            WHERE g.lane = b.lane AND g.high >= b.seq AND g.low <= b.seq AND EXISTS (SELECT 1 FROM json_each(g.seqs) AS v WHERE v.value = b.seq) ORDER BY g.high LIMIT 1)
        ELSE COALESCE((SELECT c.at FROM outbox_partitions AS p JOIN outbox_claims AS c ON c.member = p.owner
        WHERE p.lane = b.lane AND p.part = b.part AND EXISTS (SELECT 1 FROM json_each(c.seqs) AS v WHERE v.value = b.seq) LIMIT 1), q.failed_at)
    END AS last_attempt_at,
    COALESCE(q.error, a.error) AS last_error,
    COALESCE(q.failure, a.class) AS failure_class,
    CASE WHEN q.seq IS NOT NULL THEN (SELECT m.name FROM outbox_partitions AS p JOIN outbox_claims AS c ON c.member = p.owner JOIN outbox_members AS m ON m.member = c.member
        WHERE p.lane = b.lane AND p.part = b.part AND EXISTS (SELECT 1 FROM json_each(c.seqs) AS v WHERE v.value = b.seq) LIMIT 1) END AS locked_by,
    CASE WHEN q.seq IS NOT NULL THEN (SELECT m.until FROM outbox_partitions AS p JOIN outbox_claims AS c ON c.member = p.owner JOIN outbox_members AS m ON m.member = c.member
        WHERE p.lane = b.lane AND p.part = b.part AND EXISTS (SELECT 1 FROM json_each(c.seqs) AS v WHERE v.value = b.seq) LIMIT 1) END AS locked_until,
    CASE WHEN q.seq IS NOT NULL THEN (SELECT c.member FROM outbox_partitions AS p JOIN outbox_claims AS c ON c.member = p.owner
        WHERE p.lane = b.lane AND p.part = b.part AND EXISTS (SELECT 1 FROM json_each(c.seqs) AS v WHERE v.value = b.seq) LIMIT 1) END AS fence,
    CASE WHEN q.seq IS NOT NULL THEN (SELECT c.n FROM outbox_partitions AS p JOIN outbox_claims AS c ON c.member = p.owner
        WHERE p.lane = b.lane AND p.part = b.part AND EXISTS (SELECT 1 FROM json_each(c.seqs) AS v WHERE v.value = b.seq) LIMIT 1) END AS claim_id,
    COALESCE(q.losses, a.losses, 0) AS losses,
    COALESCE(q.held, 0) AS held,
    b.occurred_at, b.created_at,
    CASE WHEN q.seq IS NULL AND a.seq IS NULL THEN (SELECT g.at FROM outbox_log AS g
            WHERE g.lane = b.lane AND g.high >= b.seq AND g.low <= b.seq AND EXISTS (SELECT 1 FROM json_each(g.seqs) AS v WHERE v.value = b.seq) ORDER BY g.high LIMIT 1) END AS published_at,
    CASE
        WHEN a.seq IS NOT NULL THEN strftime('%Y-%m-%dT%H:%M:%fZ', a.at, (SELECT json_extract(s.value, '$.abandoned') || ' seconds' FROM outbox_settings AS s WHERE s.name = 'retention'))
        WHEN q.seq IS NULL THEN strftime('%Y-%m-%dT%H:%M:%fZ', (SELECT g.at FROM outbox_log AS g
            WHERE g.lane = b.lane AND g.high >= b.seq AND g.low <= b.seq AND EXISTS (SELECT 1 FROM json_each(g.seqs) AS v WHERE v.value = b.seq) ORDER BY g.high LIMIT 1),
            (SELECT json_extract(s.value, '$.published') || ' seconds' FROM outbox_settings AS s WHERE s.name = 'retention'))
    END AS expires_at
FROM outbox_messages AS b
LEFT JOIN outbox_queue AS q ON q.lane = b.lane AND q.part = b.part AND q.seq = b.seq
LEFT JOIN outbox_abandoned AS a ON a.seq = b.seq
JOIN outbox_lanes AS l ON l.id = b.lane;
