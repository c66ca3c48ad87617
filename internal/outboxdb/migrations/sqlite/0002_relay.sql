-- tolerates: 2
-- Builds of the first design would find none of their tables.
--
-- The tables of the second design. Those of the first stand aside until what they
-- have is taken over.
ALTER TABLE outbox RENAME TO outbox_first;
ALTER TABLE outbox_partitions RENAME TO outbox_first_partitions;
ALTER TABLE outbox_workers RENAME TO outbox_first_workers;
ALTER TABLE outbox_published RENAME TO outbox_first_published;
-- Its name is a table's from here on.
DROP INDEX outbox_abandoned;

-- The targets that events leave for, by number.
CREATE TABLE outbox_lanes (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    target TEXT NOT NULL UNIQUE
);

-- Events with all that leaves, one row per event and target: inserted once, never
-- updated, and removed by housekeeping.
CREATE TABLE outbox_messages (
    seq               INTEGER PRIMARY KEY AUTOINCREMENT, -- insertion order, which is commit order per aggregate; never used twice
    lane              INTEGER NOT NULL, -- which target this row is for, in outbox_lanes
    part              INTEGER NOT NULL, -- hash bucket of partition_key; its owner is in outbox_partitions
    id                TEXT NOT NULL,    -- UUIDv7 of this row
    message_id        TEXT NOT NULL,    -- the event's id: equal in all its rows and on every attempt
    stream            TEXT NOT NULL,    -- <context>::<aggregate>-<id>
    stream_category   TEXT NOT NULL,    -- <context>::<aggregate>
    topic             TEXT,             -- without the broker's prefix; null: the category with . for ::
    partition_key     TEXT NOT NULL,    -- rows of one key, category, topic and target are published in the order of seq
    message_type      TEXT NOT NULL,    -- <Context>.<Event>.v<version>
    aggregate_type    TEXT NOT NULL,
    aggregate_id      TEXT NOT NULL,
    aggregate_version INTEGER NOT NULL,
    payload           BLOB NOT NULL,    -- the exact bytes that are published
    content_type      TEXT NOT NULL,
    cloud_event       TEXT,             -- attributes of a CloudEvent of which payload is the data, as JSON; null: payload is all
    correlation_id    TEXT,
    causation_id      TEXT,
    tenant_id         TEXT,             -- as it leaves: null where the target's envelope does not name the tenant
    traceparent       TEXT,
    priority          INTEGER NOT NULL DEFAULT 0, -- above 0 first, below 0 last between keys, never within a key
    occurred_at       TEXT NOT NULL,    -- when the event was raised
    created_at        TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    key               INTEGER,          -- as in outbox_queue; null: published by the first design, as the next two
    topic_hash        INTEGER,
    bytes             INTEGER,
    UNIQUE (message_id, lane)
);

-- Events that are not delivered yet. A row leaves when its event was published or
-- given up.
CREATE TABLE outbox_queue (
    lane      INTEGER NOT NULL, -- which target it is for, in outbox_lanes
    part      INTEGER NOT NULL, -- hash bucket of its partition key
    seq       INTEGER NOT NULL, -- of outbox_messages
    key       INTEGER NOT NULL, -- hash of target, topic, category and partition key: rows of one key leave in the order of seq
    topic     INTEGER NOT NULL, -- hash of the topic
    class     INTEGER NOT NULL DEFAULT 0 CHECK (class BETWEEN -1 AND 1), -- the sign of its priority
    bytes     INTEGER NOT NULL, -- about what it takes in memory and on the wire
    attempts  INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0), -- attempts that were spent; those of an outage are not counted
    losses    INTEGER NOT NULL DEFAULT 0 CHECK (losses >= 0), -- claims in a row that nobody settled
    held      INTEGER NOT NULL DEFAULT 0, -- given up, and its key waits for an operator
    due_at    TEXT,             -- failed: not before; past: somebody has to look at the key again
    failed_at TEXT,             -- when the last failure was written
    failure   TEXT CHECK (failure IN ('unavailable', 'transient', 'unknown', 'permanent', 'crash')),
    error     TEXT CHECK (length(error) <= 2048), -- the broker's words at the last failure
    PRIMARY KEY (lane, part, seq)
) WITHOUT ROWID;

CREATE INDEX outbox_queue_key ON outbox_queue (key, seq);
CREATE INDEX outbox_queue_due ON outbox_queue (lane, due_at, seq) WHERE due_at IS NOT NULL;
CREATE INDEX outbox_queue_first ON outbox_queue (lane, part, seq) WHERE class > 0;

-- What a unit of work inserts into: an event becomes a body and a queue row, and a
-- target that is new a lane.
CREATE VIEW outbox_insert AS
SELECT l.target, m.*
FROM outbox_messages AS m JOIN outbox_lanes AS l ON l.id = m.lane;

CREATE TRIGGER outbox_insert_event INSTEAD OF INSERT ON outbox_insert FOR EACH ROW
BEGIN
    INSERT INTO outbox_lanes (target) SELECT NEW.target WHERE NOT EXISTS (SELECT 1 FROM outbox_lanes WHERE target = NEW.target);
    INSERT INTO outbox_messages (lane, part, id, message_id, stream, stream_category, topic, partition_key, message_type,
        aggregate_type, aggregate_id, aggregate_version, payload, content_type, cloud_event, correlation_id, causation_id,
        tenant_id, traceparent, priority, occurred_at, key, topic_hash, bytes)
    VALUES ((SELECT id FROM outbox_lanes WHERE target = NEW.target), NEW.part, NEW.id, NEW.message_id, NEW.stream, NEW.stream_category, NEW.topic, NEW.partition_key, NEW.message_type,
        NEW.aggregate_type, NEW.aggregate_id, NEW.aggregate_version, NEW.payload, NEW.content_type, NEW.cloud_event, NEW.correlation_id, NEW.causation_id,
        NEW.tenant_id, NEW.traceparent, NEW.priority, NEW.occurred_at, NEW.key, NEW.topic_hash, NEW.bytes);
    INSERT INTO outbox_queue (lane, part, seq, key, topic, class, bytes)
    VALUES ((SELECT id FROM outbox_lanes WHERE target = NEW.target), NEW.part, last_insert_rowid(), NEW.key, NEW.topic_hash,
        (NEW.priority > 0) - (NEW.priority < 0), NEW.bytes);
END;

-- Who publishes for a target: a process from when it joins until it leaves or is
-- taken to be dead. Its number is never used twice.
CREATE TABLE outbox_members (
    member  INTEGER PRIMARY KEY AUTOINCREMENT,
    lane    INTEGER NOT NULL, -- for which target, in outbox_lanes
    name    TEXT NOT NULL,    -- host, process, random part
    since   TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), -- when it joined
    until   TEXT NOT NULL,    -- from then on others may end it
    healthy INTEGER NOT NULL DEFAULT 1, -- whether it reaches its broker
    trouble TEXT              -- why it does not, in its words
);

-- Which member publishes which partition. The one place that decides.
CREATE TABLE outbox_partitions (
    lane  INTEGER NOT NULL,
    part  INTEGER NOT NULL, -- from 0 to the number of partitions - 1
    owner INTEGER,          -- number of the member; null: nobody
    PRIMARY KEY (lane, part)
) WITHOUT ROWID;

-- What members have in hand, a row per claim. Who deletes it decides about its events.
CREATE TABLE outbox_claims (
    member INTEGER NOT NULL,
    n      INTEGER NOT NULL, -- which of its claims
    at     TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    seqs   TEXT NOT NULL,    -- of outbox_queue, as a JSON array
    PRIMARY KEY (member, n)
) WITHOUT ROWID;

-- What was published, a row per claim. Housekeeping removes events by it, and then
-- the row.
CREATE TABLE outbox_log (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    lane      INTEGER NOT NULL,
    member    INTEGER NOT NULL, -- by whom
    n         INTEGER NOT NULL, -- by which of its claims
    at        TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), -- when the broker's acknowledgements were written back
    published INTEGER NOT NULL, -- how many
    retries   INTEGER NOT NULL DEFAULT 0, -- how many attempts of the claim were not the first of their event
    low       INTEGER NOT NULL, -- the lowest of seqs
    high      INTEGER NOT NULL, -- the highest of seqs
    seqs      TEXT NOT NULL,    -- of outbox_messages, as a JSON array
    attempts  TEXT              -- of each, as a JSON array; null: all at the first
);

-- Events that were given up. They are kept for operators, and hold nothing.
CREATE TABLE outbox_abandoned (
    seq             INTEGER PRIMARY KEY, -- of outbox_messages
    lane            INTEGER NOT NULL,
    part            INTEGER NOT NULL,
    key             INTEGER NOT NULL, -- as in outbox_queue
    at              TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), -- when it was given up
    class           TEXT,             -- as failure in outbox_queue; null: an operator has given up what never failed
    error           TEXT CHECK (length(error) <= 2048), -- the broker's words, or an operator's name
    attempts        INTEGER NOT NULL,
    losses          INTEGER NOT NULL,
    maybe_delivered INTEGER NOT NULL  -- whether it may have arrived all the same
);
