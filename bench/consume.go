package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

const (
	// toConsume is how many messages are in the topic, on so many keys.
	toConsume    = 40_000
	consumedKeys = 2_000

	consumeLanes = 8
	project      = "INSERT INTO projection (key, n) VALUES (?, 1) ON CONFLICT (key) DO UPDATE SET n = projection.n + 1"
)

// consume is effects per second of a subscription with an inbox, each the change of
// one row of a projection, from its start to the last effect.
func consume(batch int) func(context.Context, *world) (map[string]float64, error) {
	return func(ctx context.Context, w *world) (map[string]float64, error) {
		b, end, err := w.broker(ctx)
		if err != nil {
			return nil, err
		}
		defer end()
		if err := w.produce(ctx); err != nil {
			return nil, err
		}
		r, err := subscription.NewRunner(subscription.RunnerConfig{
			Stream: subscription.Stream{
				Name: "projection", Category: category, Units: w.units, Lanes: consumeLanes, Batch: batch,
				Handlers: []subscription.Handler{subscription.On(func(ctx context.Context, _ PaperFiled) error {
					m, _ := domain.MetadataFrom(ctx)
					return uow.Exec(ctx, project, m.AggregateID)
				})},
			},
			Broker: b,
			Logger: slog.New(slog.NewTextHandler(w.out, &slog.HandlerOptions{Level: slog.LevelWarn})),
		})
		if err != nil {
			return nil, err
		}
		rate, err := w.consuming(ctx, func() error { return r.Start(ctx) })
		return rate, errors.Join(err, r.Stop(context.WithoutCancel(ctx)), w.projected(ctx, err))
	}
}

// consuming times start until all effects are there, without the time that it
// takes to join the group: from the first effect on.
func (w *world) consuming(ctx context.Context, start func() error) (map[string]float64, error) {
	if err := start(); err != nil {
		return nil, err
	}
	const patience = 3 * time.Minute
	var begin time.Time
	var before int64
	for deadline := time.Now().Add(patience); ; pause(ctx, 20*time.Millisecond) {
		var n int64
		if err := w.sql.QueryRow(ctx, "SELECT count(*) FROM inbox").Scan(&n); err != nil {
			return nil, err
		}
		switch {
		case begin.IsZero() && n > 0:
			begin, before = time.Now(), n
		case n == int64(w.consumed):
			return map[string]float64{"rate": float64(n-before) / time.Since(begin).Seconds()}, nil
		case time.Now().After(deadline):
			return nil, fmt.Errorf("%d of %d messages within %v", n, w.consumed, patience)
		}
	}
}

// produce fills the topic, and empties the tables.
func (w *world) produce(ctx context.Context) error {
	err := w.each(ctx, "CREATE TABLE IF NOT EXISTS projection (key text PRIMARY KEY, n bigint NOT NULL)",
		"TRUNCATE inbox, projection", "VACUUM (ANALYZE) inbox, projection", "CHECKPOINT")
	if err != nil {
		return err
	}
	partitions, err := w.partitions(ctx)
	if err != nil {
		return err
	}
	rows, err := sample(partitions, w.consumed, consumedKeys)
	if err != nil {
		return err
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(w.kafka), kgo.ProducerBatchCompression(kgo.SnappyCompression()), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)))
	if err != nil {
		return err
	}
	defer client.Close()
	var records []*kgo.Record
	for _, r := range rows {
		records = append(records, &kgo.Record{
			Topic: w.prefix() + topic, Key: []byte(r.PartitionKey), Value: r.Payload,
			Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(r.MessageID)}, {Key: "type", Value: []byte(r.MessageType)}},
		})
	}
	return client.ProduceSync(ctx, records...).FirstErr()
}

// projected says whether every message has had its effect once.
func (w *world) projected(ctx context.Context, failed error) error {
	if failed != nil {
		return nil
	}
	var keys, sum, inbox int64
	err := w.sql.QueryRow(ctx, "SELECT count(*), sum(n), (SELECT count(*) FROM inbox) FROM projection").Scan(&keys, &sum, &inbox)
	if err == nil && (keys != consumedKeys || sum != int64(w.consumed) || inbox != int64(w.consumed)) {
		err = fmt.Errorf("%d messages of %d keys left %d inbox rows, %d keys and a sum of %d", w.consumed, consumedKeys, inbox, keys, sum)
	}
	return err
}

// consumeByHand is a consumer for this case only: a worker for each part of the
// keys, with a connection of its own, and the same transactions: the inbox rows of up
// to batch messages in one statement, then the statement of each message. Offsets
// are committed now and then. It knows no failures, no rebalance and no order
// across its own restarts.
func consumeByHand(batch int) func(context.Context, *world) (map[string]float64, error) {
	return func(ctx context.Context, w *world) (_ map[string]float64, err error) {
		_, end, err := w.broker(ctx) // for the topic
		if err != nil {
			return nil, err
		}
		end()
		if err := w.produce(ctx); err != nil {
			return nil, err
		}
		client, err := kgo.NewClient(kgo.SeedBrokers(w.kafka), kgo.ConsumerGroup("by-hand"), kgo.ConsumeTopics(w.prefix()+topic),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		if err != nil {
			return nil, err
		}
		defer client.Close()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		lanes := make([]chan *kgo.Record, consumeLanes)
		errs := make([]error, len(lanes))
		var working sync.WaitGroup
		for i := range lanes {
			lanes[i] = make(chan *kgo.Record, 4*max(batch, 8))
			c, err := pgx.Connect(ctx, w.dsn)
			if err != nil {
				return nil, err
			}
			defer c.Close(context.WithoutCancel(ctx))
			working.Go(func() {
				errs[i] = handLane(ctx, c, lanes[i], batch)
				cancel()
			})
		}
		start := func() error {
			go func() {
				for ctx.Err() == nil {
					client.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
						h := fnv.New32a()
						_, _ = h.Write(r.Key)
						select {
						case lanes[h.Sum32()%consumeLanes] <- r:
						case <-ctx.Done():
						}
					})
				}
			}()
			return nil
		}
		rate, err := w.consuming(ctx, start)
		cancel()
		working.Wait()
		return rate, errors.Join(errors.Join(errs...), err, w.projected(context.WithoutCancel(ctx), err))
	}
}

const (
	handInbox   = "INSERT INTO inbox (subscription, message_id) SELECT 'projection', unnest($1::text[]) ON CONFLICT DO NOTHING"
	handProject = "INSERT INTO projection (key, n) VALUES ($1, 1) ON CONFLICT (key) DO UPDATE SET n = projection.n + 1"
)

func handLane(ctx context.Context, c *pgx.Conn, records <-chan *kgo.Record, batch int) error {
	for {
		var all []*kgo.Record
		select {
		case r := <-records:
			all = append(all, r)
		case <-ctx.Done():
			return nil
		}
		for more := true; more && len(all) < batch; {
			select {
			case r := <-records:
				all = append(all, r)
			default:
				more = false
			}
		}
		if err := handUnit(context.WithoutCancel(ctx), c, all); err != nil {
			return err
		}
	}
}

func handUnit(ctx context.Context, c *pgx.Conn, all []*kgo.Record) error {
	ids := make([]string, len(all))
	for i, r := range all {
		ids[i] = header(r, "id")
	}
	tx, err := c.Begin(ctx)
	if err != nil {
		return err
	}
	tag, err := tx.Exec(ctx, handInbox, ids)
	if err == nil && int(tag.RowsAffected()) != len(all) {
		err = errors.New("a message came twice")
	}
	for _, r := range all {
		if err == nil {
			_, err = tx.Exec(ctx, handProject, string(r.Key))
		}
	}
	if err != nil {
		return errors.Join(err, tx.Rollback(ctx))
	}
	return tx.Commit(ctx)
}
