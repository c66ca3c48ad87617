package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

// deadTopic is a topic that the broker refuses.
const deadTopic = "dead"

// condition is what the outbox has to live with.
type condition struct {
	name string
	lots []lot
	// drains: the lots are what is drained, so nothing is live or idle meanwhile.
	drains bool
	// engines, each as a process of its own has it: with its own connections. Those
	// of idle engines are divided by their number. At least one.
	engines int
	// schemas of the one engine, of which the first is written to.
	schemas int
	// snapshot: another transaction keeps what it saw, while so many rows came and went.
	snapshot int
}

// conditions are those of relay-protocol.md's envelope, smaller by a scale.
func conditions(scale float64) []condition {
	n := func(most, least int) int { return max(least, int(float64(most)*scale)) }
	k := n(100_000, 1_000)
	return []condition{
		{name: "backlog", drains: true, lots: []lot{{rows: n(1_000_000, 20_000), keys: n(10_000, 1_000), name: "backlog-"}}},
		{name: "history", lots: []lot{{rows: n(1_000_000, 1_000), keys: n(1_000_000, 1_000), name: "past-", state: published, ago: time.Hour}}},
		{name: "followers", lots: []lot{{rows: k, keys: 1, name: "waits-", state: failed}}},
		{name: "dead-topic", lots: []lot{{rows: k, keys: k / 2, name: "dead-", topic: deadTopic}}},
		{name: "held-keys", lots: []lot{{rows: k, keys: n(5_000, 50), name: "held-", state: held}}},
		{name: "snapshot", snapshot: n(300_000, 2_000)},
		{name: "schemas", schemas: n(1_000, 4)},
		{name: "processes", engines: n(64, 3)},
	}
}

// beside is a broker that refuses a topic and counts the messages that it has.
type beside struct {
	broker.Broker
	mu       sync.Mutex
	answered int
	watch    *stopwatch // nil: nobody wants to know when
}

func (b *beside) Publish(ctx context.Context, messages []broker.Message) error {
	refused := map[int]error{}
	var live []broker.Message
	for i, m := range messages {
		if m.Topic == deadTopic {
			refused[i] = broker.Scoped(broker.Transient, broker.ScopeTopic, errors.New("there is no leader"))
		} else {
			live = append(live, m)
		}
	}
	if len(live) > 0 {
		if err := b.Broker.Publish(ctx, live); err != nil {
			return broker.Scoped(broker.ClassOf(err), broker.ScopeOf(err), errors.New(err.Error())) // its places are not those of messages
		}
	}
	b.note(live)
	if len(refused) > 0 {
		return &broker.PublishError{Failed: refused}
	}
	return nil
}

func (b *beside) note(messages []broker.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answered += len(messages)
	if b.watch != nil {
		b.watch.answer(time.Now(), messages...)
	}
}

// timed notes the times of answers until it is ended.
func (b *beside) timed(watch *stopwatch) (end func()) {
	set := func(to *stopwatch) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.watch = to
	}
	set(watch)
	return func() { set(nil) }
}

func (b *beside) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.answered
}

// reached waits until so many messages were answered.
func (b *beside) reached(ctx context.Context, n int) error {
	const patience = 5 * time.Minute
	for begin := time.Now(); b.count() < n; pause(ctx, time.Millisecond) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Since(begin) > patience {
			return fmt.Errorf("%d of %d live rows within %v", b.count(), n, patience)
		}
	}
	return nil
}

// processConns and schemaConns are the connections of one of many processes or schemas:
// as few as they can do with. Schemas of one server share what is beside the pools.
const (
	processConns = 3
	schemaConns  = 2
)

func (w *world) narrow(conns int) string {
	separator := "?"
	if strings.Contains(w.dsn, "?") {
		separator = "&"
	}
	return w.dsn + separator + fmt.Sprintf("pool_max_conns=%d", conns)
}

// connects says whether the server lets as many connections be open as a condition needs.
func (w *world) connects(ctx context.Context, c condition) error {
	const others = 30 // of the first process, of the bench, of who else is there
	var most int
	err := w.sql.QueryRow(ctx, "SELECT setting::int FROM pg_settings WHERE name = 'max_connections'").Scan(&most)
	if need := others + schemaConns*max(c.schemas-1, 0) + (processConns+1)*max(c.engines-1, 0); err == nil && need > most {
		return fmt.Errorf("%d schemas and %d processes need %d connections, and PostgreSQL lets %d be open: raise max_connections, or take a smaller --scale",
			max(c.schemas, 1), max(c.engines, 1), need, most)
	}
	return err
}

// provided is a world whose only context has so many schemas, migrated, and its end.
func (w *world) provided(ctx context.Context, schemas int) (_ *world, end func(), err error) {
	other := *w
	providers := []uow.Provider{w.provider}
	end = func() {
		for _, p := range providers[1:] {
			_ = p.Close()
		}
	}
	for i := range schemas - 1 {
		name := fmt.Sprintf("schema_%d", i)
		p, err := postgres.Open(ctx, postgres.Config{Name: name, Schema: name, DSN: w.narrow(schemaConns)})
		if err != nil {
			end()
			return nil, nil, err
		}
		providers = append(providers, p)
	}
	err = other.over(providers)
	if err == nil && schemas > 1 {
		err = engine.Migrate(ctx, other.units)
	}
	if err != nil {
		end()
		return nil, nil, err
	}
	return &other, end, nil
}
