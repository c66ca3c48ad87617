package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/nats"
	"github.com/waybill-go/waybill/subscription/dedup"
	"github.com/waybill-go/waybill/subscription/dedup/natskv"
)

// connect is a plain client's connection, as a service of any kind has one.
func connect(server nats.Config, options ...natsgo.Option) (*natsgo.Conn, error) {
	key, err := natsgo.NkeyOptionFromSeed(server.NKey)
	if err != nil {
		return nil, err
	}
	return natsgo.Connect(server.URL, append(options, key)...)
}

// work debits cards until the process is killed, or the server is gone.
func work(ctx context.Context, server nats.Config) error {
	nc, err := connect(server, natsgo.NoReconnect())
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	publisher, err := nats.Open(ctx, server)
	if err != nil {
		return err
	}
	defer func() { _ = publisher.Close(context.WithoutCancel(ctx)) }()
	store, err := natskv.Open(ctx, js, natskv.Config{Bucket: "cards"})
	if err != nil {
		return err
	}
	m := mortal{store, publisher}
	handler, err := cards(m, m)
	if err != nil {
		return err
	}
	consumer, err := js.Consumer(ctx, "payments", "cards")
	if err != nil {
		return err
	}
	return consume(ctx, consumer, handler)
}

// consume shares the messages of a JetStream consumer with all other workers.
func consume(ctx context.Context, consumer jetstream.Consumer, debit *dedup.Handler[Card]) error {
	for ctx.Err() == nil {
		batch, err := consumer.Fetch(10, jetstream.FetchMaxWait(time.Second))
		if err != nil {
			return err
		}
		for m := range batch.Messages() {
			message := broker.Message{ID: m.Headers().Get("id"), Topic: m.Subject(), Key: m.Headers().Get("card"), Body: m.Data()}
			settle := m.Ack
			if err := debit.Handle(ctx, message); err != nil {
				fmt.Fprintf(os.Stderr, "payments: worker: %v\n", err)
				settle = func() error { return m.NakWithDelay(time.Second) } // It comes again.
			}
			if err := settle(); err != nil {
				return err
			}
		}
		if err := batch.Error(); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// mortal kills its process at one in some hundreds of the steps of a payment.
type mortal struct {
	*natskv.Store
	broker.Publisher
}

// risk is that of a step.
const risk = 1.0 / 300

func die() {
	if rand.Float64() >= risk {
		return
	}
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Kill()
	}
	select {} // The end comes in a moment, and nothing is done until then.
}

func (s mortal) Get(ctx context.Context, key string) (value []byte, revision string, err error) {
	defer die()
	return s.Store.Get(ctx, key)
}

func (s mortal) Has(ctx context.Context, id string) (bool, error) {
	defer die()
	return s.Store.Has(ctx, id)
}

func (s mortal) Swap(ctx context.Context, key string, value []byte, revision string) (string, error) {
	defer die()
	return s.Store.Swap(ctx, key, value, revision)
}

func (s mortal) Publish(ctx context.Context, messages []broker.Message) error {
	defer die()
	return s.Publisher.Publish(ctx, messages)
}

func (s mortal) Add(ctx context.Context, id string) error {
	defer die()
	return s.Store.Add(ctx, id)
}
