package main

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	watermillsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/jackc/pgx/v5/stdlib" // database/sql, which watermill-sql asks for
)

const (
	// peerTime is how long a peer may take; what it has done until then is its rate.
	peerTime = 30 * time.Second

	forwardTopic = "forward"
	forwardBatch = 1000
	keyOf        = "key"
)

// watermill is events per second of Watermill's outbox: the forwarder over
// watermill-sql's default schema, with what was fastest of several settings, and
// watermill-kafka behind it.
func (d drainage) watermill(ctx context.Context, w *world) (_ map[string]float64, err error) {
	if err := w.anew(ctx); err != nil {
		return nil, err
	}
	rows, err := w.backlog(ctx, d)
	if err != nil {
		return nil, err
	}
	db, err := sql.Open("pgx", w.dsn)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	if _, err := w.sql.Exec(ctx, "DROP TABLE IF EXISTS watermill_"+forwardTopic+", watermill_offsets_"+forwardTopic); err != nil {
		return nil, err
	}
	schema := watermillsql.DefaultPostgreSQLSchema{SubscribeBatchSize: forwardBatch}
	stored, err := watermillsql.NewPublisher(db, watermillsql.PublisherConfig{SchemaAdapter: schema, AutoInitializeSchema: true}, nil)
	if err != nil {
		return nil, err
	}
	enveloped := forwarder.NewPublisher(stored, forwarder.PublisherConfig{ForwarderTopic: forwardTopic})
	for n := 0; n < len(rows); n += forwardBatch {
		var messages []*message.Message
		for _, r := range rows[n:min(n+forwardBatch, len(rows))] {
			m := message.NewMessage(r.MessageID, r.Payload)
			m.Metadata.Set("id", r.MessageID)
			m.Metadata.Set("type", r.MessageType)
			m.Metadata.Set(keyOf, r.PartitionKey)
			messages = append(messages, m)
		}
		if err := enveloped.Publish(w.prefix()+topic, messages...); err != nil {
			return nil, err
		}
	}
	for _, statement := range []string{"VACUUM (ANALYZE) watermill_" + forwardTopic, "CHECKPOINT"} {
		if _, err := w.sql.Exec(ctx, statement); err != nil {
			return nil, err
		}
	}

	begin := time.Now()
	from, err := watermillsql.NewSubscriber(db, watermillsql.SubscriberConfig{
		SchemaAdapter: schema, OffsetsAdapter: watermillsql.DefaultPostgreSQLOffsetsAdapter{},
		PollInterval: 10 * time.Millisecond, InitializeSchema: true,
	}, nil)
	if err != nil {
		return nil, err
	}
	settings := kafka.DefaultSaramaSyncPublisherConfig()
	settings.Producer.RequiredAcks = sarama.WaitForAll // as the others
	to, err := kafka.NewPublisher(kafka.PublisherConfig{
		Brokers: []string{w.kafka}, OverwriteSaramaConfig: settings,
		Marshaler: kafka.NewWithPartitioningMarshaler(func(_ string, m *message.Message) (string, error) { return m.Metadata.Get(keyOf), nil }),
	}, nil)
	if err != nil {
		return nil, err
	}
	counted := &counted{Publisher: to, want: int64(len(rows)), done: make(chan struct{})}
	f, err := forwarder.NewForwarder(from, counted, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: forwardTopic})
	if err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	over := time.NewTimer(peerTime)
	defer over.Stop()
	select {
	case <-counted.done:
	case <-over.C:
	case err = <-ended:
		return nil, errors.Join(errors.New("the forwarder has ended"), err)
	}
	n, took := counted.n.Load(), time.Since(begin)
	if err := errors.Join(f.Close(), <-ended, from.Close(), to.Close()); err != nil {
		return nil, err
	}
	return map[string]float64{"rate": float64(n) / took.Seconds()}, w.published(ctx, rows[:counted.n.Load()])
}

// counted tells how many messages a publisher has published, and when it was the
// last.
type counted struct {
	message.Publisher
	want int64
	n    atomic.Int64
	done chan struct{}
}

func (c *counted) Publish(topic string, messages ...*message.Message) error {
	err := c.Publisher.Publish(topic, messages...)
	if err == nil && c.n.Add(int64(len(messages))) == c.want {
		close(c.done)
	}
	return err
}
