package main

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	relayWorkers  = 2
	relayBatch    = 1000
	relayInFlight = 4
)

// relay is the least that publishes an outbox in order: it owns a part of the
// partitions and claims no rows, so that each is written once, when it is
// published. It reads ahead while batches are on their way. It knows no leases, no
// failures and no other process, and relies on nobody writing meanwhile.
type relay struct {
	dsn    string
	client *kgo.Client
	topic  string
	tables *tables
	part   int
	parts  int
	settle string
}

// relayed is a batch on its way.
type relayed struct {
	parts   []int16
	seqs    []int64
	working sync.WaitGroup
	mu      sync.Mutex
	err     error
}

// byHand lets relays do what waybill does.
func (d drainage) byHand(t *tables) work {
	return func(ctx context.Context, w *world) (map[string]float64, error) {
		_, end, err := w.broker(ctx) // for the topic
		if err != nil {
			return nil, err
		}
		end()
		filled, err := t.fill(ctx, w, d)
		if err != nil {
			return nil, err
		}
		got, err := d.measure(ctx, w, func(done func()) error {
			defer done()
			return d.relays(ctx, w, t)
		})
		if err != nil {
			return nil, err
		}
		stay := len(filled)
		if d.delete {
			stay = 0
		}
		if err := t.finished(ctx, w, stay); err != nil {
			return nil, err
		}
		return got, w.published(ctx, filled)
	}
}

// relays publish what is there.
func (d drainage) relays(ctx context.Context, w *world, t *tables) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(w.kafka), kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ProducerBatchCompression(kgo.SnappyCompression()))
	if err != nil {
		return err
	}
	defer client.Close()
	r := relay{dsn: w.dsn, client: client, topic: w.prefix() + topic, tables: t, parts: cmp.Or(d.calls*(1+d.others), relayWorkers), settle: t.settle}
	if d.delete {
		r.settle = t.remove
	}
	errs := make([]error, r.parts)
	var working sync.WaitGroup
	for r.part = range r.parts {
		mine := r
		working.Go(func() { errs[mine.part] = mine.run(ctx) })
	}
	working.Wait()
	return errors.Join(errs...)
}

// run reads and produces until nothing is left, while another connection settles.
func (r relay) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	reader, err := r.tables.connect(ctx, r.dsn)
	if err != nil {
		return err
	}
	defer reader.Close(context.WithoutCancel(ctx))
	writer, err := r.tables.connect(ctx, r.dsn)
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
				_, err = writer.Exec(ctx, r.settle, b.parts, b.seqs)
			}
			if err != nil {
				cancel(err)
			}
		}
	})
	for last := (&relayed{parts: []int16{0}, seqs: []int64{0}}); err == nil; {
		var b *relayed
		if b, err = r.send(ctx, reader, last); err != nil || len(b.seqs) == 0 {
			break
		}
		last = b
		batches <- b
	}
	close(batches)
	settling.Wait()
	return errors.Join(err, context.Cause(ctx))
}

// send reads the batch after the last one and hands it to the producer.
func (r relay) send(ctx context.Context, c *pgx.Conn, last *relayed) (*relayed, error) {
	end := len(last.seqs) - 1
	found, err := c.Query(ctx, r.tables.next, r.tables.lane, r.parts, r.part, last.parts[end], last.seqs[end], relayBatch)
	if err != nil {
		return nil, err
	}
	b := &relayed{}
	records, err := pgx.CollectRows(found, func(row pgx.CollectableRow) (*kgo.Record, error) {
		part, seq, record, err := recordOf(row, r.topic)
		b.parts, b.seqs = append(b.parts, part), append(b.seqs, seq)
		return record, err
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

// recordOf is a row that tables gave.
func recordOf(row pgx.CollectableRow, topic string) (part int16, seq int64, _ *kgo.Record, err error) {
	var (
		id, key, kind, contentType, correlationID string
		at                                        time.Time
		body                                      []byte
	)
	err = row.Scan(&part, &seq, &id, &key, &kind, &contentType, &correlationID, &at, &body)
	return part, seq, &kgo.Record{Topic: topic, Key: []byte(key), Value: body, Headers: []kgo.RecordHeader{
		{Key: "id", Value: []byte(id)},
		{Key: "type", Value: []byte(kind)},
		{Key: "time", Value: []byte(at.Format(time.RFC3339Nano))},
		{Key: "content-type", Value: []byte(contentType)},
		{Key: "correlation-id", Value: []byte(correlationID)},
	}}, err
}
