package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/outbox"
)

// Backlogs and histories are made by SQL, as units of work would take hours for a
// million rows. What knows Waybill's own tables is in this file; everything else
// reads the view outbox.

// layout is how Waybill stores its outbox.
type layout struct {
	names        []string // tables that are emptied; the first has a row for each event
	forget       []string // what else a new outbox doesn't have
	target, part string   // columns of the target broker and of the partition
	lane         string   // the target broker $1 as the column has it
	left, leftTo string   // whether anything waits, or up to seq $1: cheaper than by the view

	after [lotStates][]string // what follows on a lot, for the rows above $1, of so many keys, $2

	purging, writing string // what pg_stat_activity shows of such transactions
}

// lot is many rows of one kind, made on the server.
type lot struct {
	rows  int
	keys  int    // each has as many rows as the others
	name  string // of the keys, with a number behind it
	topic string // empty: the broker's rule
	state lotState
	ago   time.Duration // since it was stored, and published if it is
}

type lotState int

const (
	waiting lotState = iota
	published
	failed // the first row of each key, and due in an hour
	held   // the first row of each key was given up and holds its key
	lotStates
)

const (
	lotColumns = "id, message_id, stream, stream_category, topic, partition_key, message_type, aggregate_type, aggregate_id, aggregate_version, payload, content_type, occurred_at, created_at"
	lotValues  = `gen_random_uuid(), gen_random_uuid(), $2::text || '-' || $3::text || k, $2, nullif($4::text, ''), $3 || k, 'Desk.PaperFiled.v1', 'paper', $3 || k, 1 + n / $8,
		substr($5::bytea, 1 + mod(n, 1000), 1200), 'application/json', now() - $9::interval, now() - $9::interval`
	lotSeries = "(SELECT n, mod(n, $8::int) AS k FROM generate_series($6::int, $7::int - 1) AS n) AS numbers"

	enqueue = `INSERT INTO outbox_queue (lane, part, seq, key, topic, class, bytes)
		SELECT lane, part, seq, hashtextextended(concat_ws(' ', lane, topic, stream_category, partition_key), 0), hashtextextended(coalesce(topic, stream_category), 0),
			sign(priority), octet_length(payload) FROM outbox_messages WHERE seq > $1 AND $2::int IS NOT NULL ORDER BY seq`
	heads = "(lane, part, seq) IN (SELECT lane, part, seq FROM outbox_messages WHERE seq > $1 ORDER BY seq LIMIT $2)"
)

// product: events have a body each, and a queue row as long as they wait.
var product = &layout{
	names:  []string{"outbox_messages", "outbox_queue", "outbox_log", "outbox_claims", "outbox_abandoned"},
	forget: []string{"DELETE FROM outbox_jobs", "DELETE FROM outbox_counts"},
	target: "lane", part: "part", lane: "(SELECT outbox_new_lane($1))",
	left:   "SELECT EXISTS (SELECT FROM outbox_queue)",
	leftTo: "SELECT EXISTS (SELECT FROM outbox_queue WHERE seq <= $1)",
	after: [lotStates][]string{
		waiting: {enqueue},
		published: {`INSERT INTO outbox_log (lane, member, n, at, published, retries, low, high, seqs)
			SELECT lane, 0, 0, min(created_at), count(*), 0, min(seq), max(seq), array_agg(seq) FROM outbox_messages WHERE seq > $1 AND $2::int IS NOT NULL GROUP BY lane, seq / 500`},
		failed: {enqueue, "UPDATE outbox_queue SET attempts = 1, due_at = now() + interval '1 hour', failure = 'transient', error = 'by the bench' WHERE " + heads},
		held:   {enqueue, "UPDATE outbox_queue SET attempts = 5, held = true, failure = 'permanent', error = 'by the bench' WHERE " + heads},
	},
	purging: `^SELECT set_config\('statement_timeout'|DELETE FROM outbox_(log|messages) WHERE`,
	writing: `INSERT INTO (documents|outbox_messages) `,
}

// partitions is Waybill's number of buckets of keys.
func (w *world) partitions(ctx context.Context) (n int, err error) {
	err = w.sql.QueryRow(ctx, "SELECT value::int FROM outbox_settings WHERE name = 'partitions'").Scan(&n)
	return n, err
}

// highest is the last row's number.
func (w *world) highest(ctx context.Context) (seq int64, err error) {
	err = w.sql.QueryRow(ctx, "SELECT coalesce(max(seq), 0) FROM "+product.names[0]).Scan(&seq)
	return seq, err
}

// insert adds rows to the outbox as they are, in one transaction, as units of work do: an engine that runs
// takes for seen what is committed, and would never look for a row of the queue that came after its body.
func (w *world) insert(ctx context.Context, rows []outbox.Row) error {
	return pgx.BeginFunc(ctx, w.sql, func(tx pgx.Tx) error {
		start, err := w.highest(ctx)
		if err != nil {
			return err
		}
		var lane any
		if err := tx.QueryRow(ctx, "SELECT "+strings.ReplaceAll(product.lane, "$1", "$1::text"), internal).Scan(&lane); err != nil {
			return err
		}
		_, err = tx.CopyFrom(ctx, identifier(product.names[0]), append([]string{product.target, product.part}, rowColumns...), pgx.CopyFromSlice(len(rows), func(i int) ([]any, error) {
			return append([]any{lane, rows[i].Partition}, rowValues(&rows[i])...), nil
		}))
		if err != nil {
			return err
		}
		return w.afterLot(ctx, waiting, start, 0)
	})
}

// add makes a lot. Rows of a key are one after the other, its first before all
// second ones.
func (w *world) add(ctx context.Context, l lot) error {
	start, err := w.highest(ctx)
	if err != nil {
		return err
	}
	statement := fmt.Sprintf("INSERT INTO %s (%s, %s, %s) SELECT %s, mod(k, %d), %s FROM %s", product.names[0], product.target, product.part, lotColumns,
		product.lane, limitPartitions, lotValues, lotSeries)
	for n := 0; n < l.rows; n += fillAtOnce {
		_, err := w.sql.Exec(ctx, statement, internal, category, l.name, l.topic, []byte(noise()[:3000]), n, min(n+fillAtOnce, l.rows), l.keys, l.ago)
		if err != nil {
			return err
		}
	}
	return w.afterLot(ctx, l.state, start, l.keys)
}

func (w *world) afterLot(ctx context.Context, state lotState, start int64, keys int) error {
	for _, statement := range product.after[state] {
		if _, err := w.sql.Exec(ctx, statement, start, keys); err != nil {
			return err
		}
	}
	return nil
}

var rowColumns = []string{
	"id", "message_id", "stream", "stream_category", "partition_key",
	"message_type", "aggregate_type", "aggregate_id", "aggregate_version", "payload", "content_type", "correlation_id", "occurred_at",
}

func rowValues(r *outbox.Row) []any {
	return []any{
		r.ID, r.MessageID, r.Stream, r.StreamCategory, r.PartitionKey,
		r.MessageType, r.AggregateType, r.AggregateID, r.AggregateVersion, r.Payload, r.ContentType, r.CorrelationID, r.OccurredAt,
	}
}

func identifier(name string) pgx.Identifier { return strings.Split(name, ".") }
