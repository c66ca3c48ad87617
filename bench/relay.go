package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	relayWorkers  = 2
	relayBatch    = 1000
	relayInFlight = 4

	relayRead = `SELECT seq, message_id::text, partition_key, message_type, content_type, correlation_id, occurred_at, payload FROM outbox
		WHERE target_broker = $1 AND partition % $2 = $3 AND finished_at IS NULL AND seq > $4 ORDER BY seq LIMIT $5`
	relayMark = `UPDATE outbox SET status = 'published', published_at = now(), finished_at = now(), expires_at = now() + interval '168 hours'
		WHERE seq = ANY ($1)`
	relayDelete = "DELETE FROM outbox WHERE seq = ANY ($1)"
)

// relay is the least that publishes an outbox in order: it owns a part of the
// partitions and claims no rows, so that each is written once, when it is
// published. It reads ahead while batches are on their way. It knows no leases, no
// failures and no other process, and relies on nobody writing meanwhile.
type relay struct {
	dsn    string
	client *kgo.Client
	topic  string
	part   int
	parts  int
	settle string
}

// relayed is a batch on its way.
type relayed struct {
	seqs    []int64
	working sync.WaitGroup
	mu      sync.Mutex
	err     error
}

// byHand lets relays do what waybill does.
func (d drainage) byHand(ctx context.Context, w *world) (_ map[string]float64, err error) {
	_, end, err := w.broker(ctx) // for the topic
	if err != nil {
		return nil, err
	}
	end()
	filled, err := w.fill(ctx, d)
	if err != nil {
		return nil, err
	}
	alive, err := w.withoutLifeCycle(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, alive()) }()
	client, err := kgo.NewClient(kgo.SeedBrokers(w.kafka), kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ProducerBatchCompression(kgo.Lz4Compression()))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	r := relay{dsn: w.dsn, client: client, topic: w.prefix() + topic, parts: cmp.Or(d.workers*(1+d.others), relayWorkers), settle: relayMark}
	if d.delete {
		r.settle = relayDelete
	}
	begin := time.Now()
	errs := make([]error, r.parts)
	var working sync.WaitGroup
	for r.part = range r.parts {
		mine := r
		working.Go(func() { errs[mine.part] = mine.run(ctx) })
	}
	working.Wait()
	took := time.Since(begin)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return map[string]float64{"rate": float64(d.events) / took.Seconds()}, w.verify(ctx, d, filled)
}

// withoutLifeCycle lets rows be published that were not claimed, until it is ended.
func (w *world) withoutLifeCycle(ctx context.Context) (end func() error, err error) {
	const alter = "ALTER TABLE outbox %s TRIGGER outbox_life_cycle"
	if _, err := w.sql.Exec(ctx, fmt.Sprintf(alter, "DISABLE")); err != nil {
		return nil, err
	}
	return func() error {
		_, err := w.sql.Exec(context.WithoutCancel(ctx), fmt.Sprintf(alter, "ENABLE"))
		return err
	}, nil
}

// run reads and produces until nothing is left, while another connection settles.
func (r relay) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	reader, err := pgx.Connect(ctx, r.dsn)
	if err != nil {
		return err
	}
	defer reader.Close(context.WithoutCancel(ctx))
	writer, err := pgx.Connect(ctx, r.dsn)
	if err != nil {
		return err
	}
	defer writer.Close(context.WithoutCancel(ctx))

	batches := make(chan *relayed, relayInFlight)
	var settling sync.WaitGroup
	settling.Go(func() {
		for b := range batches {
			b.working.Wait()
			err := b.err
			if err == nil {
				_, err = writer.Exec(ctx, r.settle, b.seqs)
			}
			if err != nil {
				cancel(err)
			}
		}
	})
	for after := int64(0); err == nil; {
		var b *relayed
		if b, err = r.send(ctx, reader, after); err != nil || len(b.seqs) == 0 {
			break
		}
		after = b.seqs[len(b.seqs)-1]
		batches <- b
	}
	close(batches)
	settling.Wait()
	return errors.Join(err, context.Cause(ctx))
}

// send reads the next batch and hands it to the producer.
func (r relay) send(ctx context.Context, c *pgx.Conn, after int64) (*relayed, error) {
	found, err := c.Query(ctx, relayRead, internal, r.parts, r.part, after, relayBatch)
	if err != nil {
		return nil, err
	}
	b := &relayed{}
	records, err := pgx.CollectRows(found, func(row pgx.CollectableRow) (*kgo.Record, error) {
		var (
			seq                                       int64
			id, key, kind, contentType, correlationID string
			at                                        time.Time
			body                                      []byte
		)
		err := row.Scan(&seq, &id, &key, &kind, &contentType, &correlationID, &at, &body)
		b.seqs = append(b.seqs, seq)
		return &kgo.Record{Topic: r.topic, Key: []byte(key), Value: body, Headers: []kgo.RecordHeader{
			{Key: "id", Value: []byte(id)},
			{Key: "type", Value: []byte(kind)},
			{Key: "time", Value: []byte(at.Format(time.RFC3339Nano))},
			{Key: "content-type", Value: []byte(contentType)},
			{Key: "correlation-id", Value: []byte(correlationID)},
		}}, err
	})
	if err != nil {
		return nil, err
	}
	b.working.Add(len(records))
	for _, record := range records {
		r.client.Produce(ctx, record, func(_ *kgo.Record, err error) {
			b.mu.Lock()
			b.err = errors.Join(b.err, err)
			b.mu.Unlock()
			b.working.Done()
		})
	}
	return b, nil
}
