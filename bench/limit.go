package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/outbox"
)

// limitPartitions is how many buckets of keys the limit has, as many as Waybill.
const limitPartitions = 64

var (
	//go:embed byhand/first.sql
	firstSQL string
	//go:embed byhand/second.sql
	secondSQL string
)

// tables are what the limit works on, in a schema of their own, and its statements.
// Reads give partition, seq, message id, key, type, content type, correlation id,
// time and body.
type tables struct {
	create string
	names  []string // with their schema; the first has a row for each event
	lane   any      // the target broker as the tables have it
	tune   []string // settings of the relay's connections

	insert string // of one row, see byHand.save
	queue  string // after rows were copied to the first table; empty: nothing
	next   string // the next rows of a part of the partitions, see relay.send
	all    string // what is not finished, by seq
	settle string // by partitions and seqs
	remove string // the same, where nothing is kept
	left   string // how many are published, and how many are not
}

// tuning keeps plans that are made while a table is empty from reading all of it
// when it no longer is. A bitmap scan is left out as it doesn't mark the index
// entries that it finds dead: the next one passes them again.
var tuning = []string{"SET enable_seqscan = off", "SET enable_bitmapscan = off"}

// first are tables as Waybill had them in its first design: one row, which is
// marked as published.
var first = &tables{
	create: firstSQL,
	names:  []string{"by_hand.outbox"},
	lane:   internal,
	tune:   tuning,
	insert: `INSERT INTO by_hand.outbox (id, message_id, target_broker, stream, stream_category, topic, partition_key, partition,
		message_type, aggregate_type, aggregate_id, aggregate_version, payload, content_type,
		correlation_id, causation_id, tenant_id, traceparent, priority, occurred_at) VALUES
		($1, $2, $3, $4, $5, NULL, $6, $7, $8, $9, $6, $10, $11, $12, $13, NULL, NULL, NULL, $14, $15)`,
	next: `SELECT 0::smallint, seq, message_id::text, partition_key, message_type, content_type, correlation_id, occurred_at, payload FROM by_hand.outbox
		WHERE target_broker = $1 AND partition % $2 = $3 AND finished_at IS NULL AND $4::smallint IS NOT NULL AND seq > $5 ORDER BY seq LIMIT $6`,
	// Sorted outside: an index on seq, in order already, would pass all that is finished.
	all: `WITH live AS MATERIALIZED (SELECT seq, message_id::text, partition_key, message_type, content_type, correlation_id, occurred_at, payload
			FROM by_hand.outbox WHERE target_broker = $1 AND finished_at IS NULL)
		SELECT 0::smallint, live.* FROM live ORDER BY seq`,
	settle: `UPDATE by_hand.outbox SET status = 'published', published_at = now(), finished_at = now(), expires_at = now() + interval '168 hours'
		WHERE $1::smallint[] IS NOT NULL AND seq = ANY ($2)`,
	remove: "DELETE FROM by_hand.outbox WHERE $1::smallint[] IS NOT NULL AND seq = ANY ($2)",
	left:   "SELECT count(*) FILTER (WHERE status = 'published'), count(*) FILTER (WHERE status <> 'published') FROM by_hand.outbox",
}

// second are tables as in Waybill's second design: what is published leaves the
// queue, and a crash of the server may bring some of it back.
var second = &tables{
	create: secondSQL,
	names:  []string{"by_hand_new.outbox_messages", "by_hand_new.outbox_queue", "by_hand_new.outbox_log"},
	lane:   int16(1),
	tune:   append([]string{"SET synchronous_commit = off"}, tuning...),
	insert: `WITH o AS (INSERT INTO by_hand_new.outbox_messages (id, message_id, lane, stream, stream_category, topic, partition_key, part,
			message_type, aggregate_type, aggregate_id, aggregate_version, payload, content_type,
			correlation_id, causation_id, tenant_id, traceparent, priority, occurred_at, key, topic_hash, bytes) VALUES
			($1, $2, $3, $4, $5, NULL, $6, $7, $8, $9, $6, $10, $11, $12, $13, NULL, NULL, NULL, $14, $15, hashtextextended($6, 0), hashtextextended($5, 0), octet_length($11::bytea))
			RETURNING seq, lane, part, key, topic_hash, bytes)
		INSERT INTO by_hand_new.outbox_queue (lane, part, seq, key, topic, bytes) SELECT lane, part, seq, key, topic_hash, bytes FROM o`,
	queue: `INSERT INTO by_hand_new.outbox_queue (lane, part, seq, key, topic, bytes)
		SELECT lane, part, seq, hashtextextended(partition_key, 0), hashtextextended(stream_category, 0), octet_length(payload) FROM by_hand_new.outbox_messages ORDER BY seq`,
	next: `SELECT q.part, q.seq, m.message_id::text, m.partition_key, m.message_type, m.content_type, m.correlation_id, m.occurred_at, m.payload
		FROM by_hand_new.outbox_queue AS q JOIN by_hand_new.outbox_messages AS m ON m.seq = q.seq
		WHERE q.lane = $1 AND q.part >= 64 * $3 / $2 AND q.part < 64 * ($3 + 1) / $2 AND (q.part, q.seq) > ($4, $5) ORDER BY q.part, q.seq LIMIT $6`,
	all: `SELECT q.part, q.seq, m.message_id::text, m.partition_key, m.message_type, m.content_type, m.correlation_id, m.occurred_at, m.payload
		FROM by_hand_new.outbox_queue AS q JOIN by_hand_new.outbox_messages AS m ON m.seq = q.seq WHERE q.lane = $1 ORDER BY q.seq`,
	settle: `WITH gone AS (DELETE FROM by_hand_new.outbox_queue AS q USING unnest($1::smallint[], $2::bigint[]) AS done(part, seq)
			WHERE q.lane = 1 AND q.part = done.part AND q.seq = done.seq RETURNING q.seq)
		INSERT INTO by_hand_new.outbox_log (lane, published, seqs) SELECT 1, count(*), array_agg(seq) FROM gone`,
	remove: `WITH gone AS (DELETE FROM by_hand_new.outbox_queue AS q USING unnest($1::smallint[], $2::bigint[]) AS done(part, seq)
			WHERE q.lane = 1 AND q.part = done.part AND q.seq = done.seq RETURNING q.seq),
		bodies AS (DELETE FROM by_hand_new.outbox_messages AS m USING unnest($2::bigint[]) AS done(seq) WHERE m.seq = done.seq)
		INSERT INTO by_hand_new.outbox_log (lane, published, seqs) SELECT 1, count(*), array_agg(seq) FROM gone`,
	left: `SELECT (SELECT count(*) FROM by_hand_new.outbox_messages) - (SELECT count(*) FROM by_hand_new.outbox_queue), (SELECT count(*) FROM by_hand_new.outbox_queue)`,
}

// connect is a connection with what the tables' relay sets.
func (t *tables) connect(ctx context.Context, dsn string) (*pgx.Conn, error) {
	c, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	for _, statement := range t.tune {
		if _, err := c.Exec(ctx, statement); err != nil {
			return nil, errors.Join(err, c.Close(ctx))
		}
	}
	return c, nil
}

// fill puts the backlog of a drainage into the tables, and returns it in its order.
func (t *tables) fill(ctx context.Context, w *world, d drainage) ([]outbox.Row, error) {
	if err := w.empty(ctx); err != nil {
		return nil, err
	}
	rows, err := sample(limitPartitions, d.events, d.keys)
	if err != nil {
		return nil, err
	}
	lane, part := "target_broker", "partition"
	if t == second {
		lane, part = "lane", "part"
	}
	_, err = w.sql.CopyFrom(ctx, identifier(t.names[0]), append([]string{lane, part}, rowColumns...), pgx.CopyFromSlice(len(rows), func(i int) ([]any, error) {
		return append([]any{t.lane, rows[i].Partition}, rowValues(&rows[i])...), nil
	}))
	if err == nil && t.queue != "" {
		_, err = w.sql.Exec(ctx, t.queue)
	}
	if err != nil {
		return nil, err
	}
	return rows, w.tidy(ctx, t.names...)
}

// finished says whether so many rows are published, and no others are there.
func (t *tables) finished(ctx context.Context, w *world, want int) error {
	var published, others int
	if err := w.sql.QueryRow(ctx, t.left).Scan(&published, &others); err != nil {
		return err
	}
	return mustBe(published, others, want)
}

func mustBe(published, others, want int) error {
	if published != want || others != 0 {
		return fmt.Errorf("%d rows are published and %d are not, instead of %d and 0", published, others, want)
	}
	return nil
}
