// Program way publishes an event through an outbox in a SQLite file, and leaves in
// GOCOVERDIR which functions it crossed, from its insert to its settlement.
//
//	way PATH
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime/coverage"
	"time"

	"github.com/google/uuid"

	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/sqlite"
)

const partitions = 8

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := run(ctx, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "way:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, path string) error {
	p, err := sqlite.Open(ctx, sqlite.Config{Path: path})
	if err != nil {
		return err
	}
	defer p.Close()
	if err := outboxdb.Migrate(ctx, p.DB(), partitions); err != nil {
		return err
	}
	r, err := relay.New(relay.Config{
		Provider: "way", Store: outboxdb.New(p.DB(), p.Reader()), Logger: slog.New(slog.DiscardHandler),
		Lanes: []relay.Lane{{Target: "default", Broker: memory.New(memory.Config{})}},
		// Nobody polls, renews or cleans up meanwhile.
		Outbox: outbox.Config{Lease: time.Hour, PublishTimeout: time.Minute, PollInterval: time.Hour, Retention: outbox.Retention{Every: -1}},
	})
	if err != nil {
		return err
	}
	if err := r.Start(ctx); err != nil {
		return err
	}
	if err := until(ctx, func() bool { return r.Status()["default"].Partitions == partitions }); err != nil {
		return err
	}
	if err := publish(ctx, p, r); err != nil { // what is done once
		return err
	}
	if err := coverage.ClearCounters(); err != nil {
		return err
	}
	if err := publish(ctx, p, r); err != nil {
		return err
	}
	os.Exit(0) // writes the counters, before anything is stopped
	return nil
}

// publish stores an event, and returns when it is settled and its call is over.
func publish(ctx context.Context, p uow.Provider, r *relay.Relay) error {
	row := outbox.Row{
		ID: uuid.NewString(), MessageID: uuid.NewString(), TargetBroker: "default",
		Stream: "ordering::order-1", StreamCategory: "ordering::order", PartitionKey: "1", Partition: outbox.PartitionOf("1", partitions),
		MessageType: "Ordering.OrderPlaced.v1", AggregateType: "order", AggregateID: "1", AggregateVersion: 1,
		Payload: []byte(`{"data":{}}`), ContentType: "application/json", CorrelationID: "1", OccurredAt: time.Now(),
	}
	if _, err := p.DB().NewRaw("?", outboxdb.Insert([]outbox.Row{row})).Exec(ctx); err != nil {
		return err
	}
	r.Wake([]outbox.Poke{{Target: row.TargetBroker, Partition: row.Partition}})
	looks := 0 // Half a second is enough for what is left of the call then.
	return until(ctx, func() bool {
		left := -1
		err := p.DB().NewRaw("SELECT count(*) FROM outbox_queue").Scan(ctx, &left)
		if err == nil && left == 0 {
			looks++
		}
		return looks == 10
	})
}

func until(ctx context.Context, done func() bool) error {
	for !done() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}
