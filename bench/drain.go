package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill/outbox"
)

// backlog is how many events wait for the internal broker when a drain begins.
const backlog = 100_000

// drain is events per second from the start of an engine with default settings
// to the last row being published, in the table too.
func drain(keys int) func(context.Context, *world) (map[string]float64, error) {
	return func(ctx context.Context, w *world) (map[string]float64, error) {
		brokers, end, err := w.brokers(ctx)
		if err != nil {
			return nil, err
		}
		defer end()
		filled, err := w.fill(ctx, keys)
		if err != nil {
			return nil, err
		}
		begin := time.Now()
		var took time.Duration
		err = w.running(ctx, brokers, func() error {
			defer func() { took = time.Since(begin) }()
			return w.drained(ctx)
		})
		if err != nil {
			return nil, err
		}
		return map[string]float64{"rate": backlog / took.Seconds()}, w.verify(ctx, filled)
	}
}

// drained waits until no row is unfinished.
func (w *world) drained(ctx context.Context) error {
	const patience = 5 * time.Minute
	for begin := time.Now(); ctx.Err() == nil; pause(ctx, 5*time.Millisecond) {
		var left bool
		// Rows leave in the order of seq: from the end on, the first look that
		// finds none costs most, and it is the last.
		err := w.sql.QueryRow(ctx, `SELECT EXISTS (SELECT FROM (SELECT finished_at FROM outbox ORDER BY seq DESC LIMIT 5000) AS last WHERE finished_at IS NULL)`).Scan(&left)
		if err == nil && !left {
			err = w.sql.QueryRow(ctx, `SELECT EXISTS (SELECT FROM outbox WHERE finished_at IS NULL)`).Scan(&left)
		}
		switch {
		case err != nil:
			return err
		case !left:
			return nil
		case time.Since(begin) > patience:
			return fmt.Errorf("not done within %v", patience)
		}
	}
	return ctx.Err()
}

// fill puts a backlog into the outbox, rows as the library makes them, and
// returns them in their order.
func (w *world) fill(ctx context.Context, keys int) ([]outbox.Row, error) {
	if err := w.empty(ctx); err != nil {
		return nil, err
	}
	partitions, err := outbox.Partitions(ctx, w.provider.Reader())
	if err != nil {
		return nil, err
	}
	rows, err := sample(partitions, backlog, keys)
	if err != nil {
		return nil, err
	}
	rows = slices.DeleteFunc(rows, func(r outbox.Row) bool { return r.TargetBroker != internal })
	_, err = w.sql.CopyFrom(ctx, pgx.Identifier{"outbox"}, []string{
		"id", "message_id", "target_broker", "stream", "stream_category", "partition_key", "partition",
		"message_type", "aggregate_type", "aggregate_id", "aggregate_version", "payload", "content_type", "correlation_id", "occurred_at",
	}, pgx.CopyFromSlice(len(rows), func(i int) ([]any, error) {
		r := &rows[i]
		return []any{
			r.ID, r.MessageID, r.TargetBroker, r.Stream, r.StreamCategory, r.PartitionKey, r.Partition,
			r.MessageType, r.AggregateType, r.AggregateID, r.AggregateVersion, r.Payload, r.ContentType, r.CorrelationID, r.OccurredAt,
		}, nil
	}))
	if err != nil {
		return nil, err
	}
	for _, statement := range []string{"VACUUM (ANALYZE) outbox", "CHECKPOINT"} {
		if _, err := w.sql.Exec(ctx, statement); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// verify says whether all rows are published, and the topic has each of them
// once, those of a key in their order.
func (w *world) verify(ctx context.Context, filled []outbox.Row) error {
	var published int
	if err := w.sql.QueryRow(ctx, "SELECT count(*) FROM outbox WHERE status = 'published'").Scan(&published); err != nil {
		return err
	}
	if published != len(filled) {
		return fmt.Errorf("%d of %d rows are published", published, len(filled))
	}
	records, err := w.read(ctx, w.prefix(internal)+topic)
	if err != nil {
		return err
	}
	return check(filled, records)
}

// relay is a program of the same shape as Waybill's processor, for this case
// only: four workers, each with a part of the keys, claim 500 rows, produce them
// and mark them. It knows no leases, no failures and no other process, and
// relies on nobody writing meanwhile.
type relay struct {
	c      *pgx.Conn
	client *kgo.Client
	topic  string
	part   int
	after  int64
}

const (
	relayWorkers = 4
	relayBatch   = 500

	relayClaim = `UPDATE outbox SET status = 'processing', locked_by = 'relay', claim_id = 1, attempts = attempts + 1, last_attempt_at = now()
		WHERE seq IN (SELECT seq FROM outbox WHERE target_broker = $1 AND partition % $2 = $3 AND finished_at IS NULL AND seq > $4 ORDER BY seq LIMIT $5)
		RETURNING seq, message_id::text, partition_key, message_type, content_type, correlation_id, occurred_at, payload`
	relayMark = `UPDATE outbox SET status = 'published', published_at = now(), finished_at = now(), expires_at = now() + interval '168 hours',
		locked_by = NULL, claim_id = NULL WHERE seq = ANY ($1)`
)

// drainByHand lets a relay do what drain does.
func drainByHand(keys int) func(context.Context, *world) (map[string]float64, error) {
	return func(ctx context.Context, w *world) (map[string]float64, error) {
		_, end, err := w.brokers(ctx) // for the topics
		if err != nil {
			return nil, err
		}
		end()
		filled, err := w.fill(ctx, keys)
		if err != nil {
			return nil, err
		}
		client, err := kgo.NewClient(kgo.SeedBrokers(w.kafka), kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ProducerBatchCompression(kgo.Lz4Compression()))
		if err != nil {
			return nil, err
		}
		defer client.Close()
		relays := make([]*relay, relayWorkers)
		for i := range relays {
			c, err := pgx.Connect(ctx, w.dsn)
			if err != nil {
				return nil, err
			}
			defer c.Close(context.WithoutCancel(ctx))
			relays[i] = &relay{c: c, client: client, topic: w.prefix(internal) + topic, part: i}
		}
		begin := time.Now()
		errs := make([]error, len(relays))
		var working sync.WaitGroup
		for i, r := range relays {
			working.Go(func() {
				for more := true; more && errs[i] == nil; {
					more, errs[i] = r.round(ctx)
				}
			})
		}
		working.Wait()
		took := time.Since(begin)
		if err := errors.Join(errs...); err != nil {
			return nil, err
		}
		return map[string]float64{"rate": backlog / took.Seconds()}, w.verify(ctx, filled)
	}
}

func (r *relay) round(ctx context.Context) (more bool, err error) {
	type row struct {
		Seq                                   int64
		ID, Key, Type, Content, CorrelationID string
		Time                                  time.Time
		Payload                               []byte
	}
	found, err := r.c.Query(ctx, relayClaim, internal, relayWorkers, r.part, r.after, relayBatch)
	if err != nil {
		return false, err
	}
	rows, err := pgx.CollectRows(found, pgx.RowToStructByPos[row])
	if err != nil || len(rows) == 0 {
		return false, err
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(a.Seq, b.Seq) })
	seqs := make([]int64, len(rows))
	records := make([]*kgo.Record, len(rows))
	for i, row := range rows {
		seqs[i] = row.Seq
		records[i] = &kgo.Record{Topic: r.topic, Key: []byte(row.Key), Value: row.Payload, Headers: []kgo.RecordHeader{
			{Key: "id", Value: []byte(row.ID)},
			{Key: "type", Value: []byte(row.Type)},
			{Key: "time", Value: []byte(row.Time.Format(time.RFC3339Nano))},
			{Key: "content-type", Value: []byte(row.Content)},
			{Key: "correlation-id", Value: []byte(row.CorrelationID)},
		}}
	}
	if err := r.client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return false, err
	}
	r.after = seqs[len(seqs)-1]
	_, err = r.c.Exec(ctx, relayMark, seqs)
	return true, err
}
