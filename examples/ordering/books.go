package main

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

const (
	orderCategory    = "ordering::order"
	shipmentCategory = "shipping::shipment"
)

// books is what a database says of orders and of what became of them.
type books struct {
	OK          bool                               `json:"ok"`
	Orders      int64                              `json:"orders"`
	Cancelled   int64                              `json:"cancelled"`
	Shipments   int64                              `json:"shipments"`
	Inbox       int64                              `json:"inbox"`
	DeadLetters int64                              `json:"dead_letters"`
	Outbox      map[string]map[outbox.Status]int64 `json:"outbox"`
	Differences []string                           `json:"differences"`

	cancelledShipments int64
	// Every change of an order or a shipment is one event.
	orderEvents, shipmentEvents int64
}

func (b *books) differ(format string, args ...any) {
	b.Differences = append(b.Differences, fmt.Sprintf(format, args...))
}

// readBooks counts, and compares what must be equal once everything has arrived.
// Brokers are those that must have an account.
func readBooks(ctx context.Context, db uow.Provider, brokers []string) (*books, error) {
	b := &books{Outbox: map[string]map[outbox.Status]int64{}, Differences: []string{}}
	if err := b.count(ctx, db.Reader()); err != nil {
		return nil, err
	}
	stats, err := engine.Outbox(db).Stats(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range brokers {
		b.Outbox[name] = map[outbox.Status]int64{}
		for _, s := range outbox.Statuses() {
			b.Outbox[name][s] = 0
		}
	}
	for name, s := range stats {
		b.Outbox[name] = s.Counts
	}
	for _, name := range slices.Sorted(maps.Keys(b.Outbox)) {
		counts := b.Outbox[name]
		if n := counts[outbox.Pending] + counts[outbox.Processing] + counts[outbox.Failed]; n > 0 {
			b.differ("%d rows for broker %s are not published yet", n, name)
		}
		if n := counts[outbox.Abandoned]; n > 0 {
			b.differ("%d rows for broker %s are abandoned", n, name)
		}
	}
	if b.Orders != b.Shipments {
		b.differ("there are %d orders and %d shipments", b.Orders, b.Shipments)
	}
	if b.Cancelled != b.cancelledShipments {
		b.differ("%d orders and %d shipments are cancelled", b.Cancelled, b.cancelledShipments)
	}
	if b.Inbox != b.orderEvents {
		b.differ("shipping is done with %d messages, and ordering sent %d", b.Inbox, b.orderEvents)
	}
	if b.DeadLetters > 0 {
		b.differ("%d messages are in dead_letters", b.DeadLetters)
	}
	if err := b.match(ctx, db.Reader()); err != nil {
		return nil, err
	}
	b.OK = len(b.Differences) == 0
	return b, nil
}

// count is one statement, so what it compares was so at one moment. What is read
// after it can only be further on.
func (b *books) count(ctx context.Context, db bun.IDB) error {
	rows, err := db.QueryContext(ctx, "SELECT category, count(*), CAST(sum(version) AS bigint), sum(CASE WHEN state ->> 'Status' = 'cancelled' THEN 1 ELSE 0 END)"+
		" FROM documents WHERE category IN (?) AND state IS NOT NULL GROUP BY category", bun.List([]string{orderCategory, shipmentCategory}))
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var category string
		var n, changes, cancelled int64
		if err := rows.Scan(&category, &n, &changes, &cancelled); err != nil {
			return err
		}
		if category == orderCategory {
			b.Orders, b.orderEvents, b.Cancelled = n, changes, cancelled
		} else {
			b.Shipments, b.shipmentEvents, b.cancelledShipments = n, changes, cancelled
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	inbox, err := subscription.CountInbox(ctx, db)
	if err != nil {
		return err
	}
	letters, err := subscription.CountDeadLetters(ctx, db)
	b.Inbox, b.DeadLetters = inbox["shipping"], letters["shipping"]
	return err
}

// match compares orders and shipments one by one.
func (b *books) match(ctx context.Context, db bun.IDB) error {
	const (
		alone   = "SELECT count(*), min(id) FROM documents AS a WHERE category = ? AND state IS NOT NULL AND NOT EXISTS (SELECT 1 FROM documents AS b WHERE b.category = ? AND b.id = a.id AND b.state IS NOT NULL)"
		unequal = "SELECT count(*), min(a.id) FROM documents AS a JOIN documents AS b ON b.category = ? AND b.id = a.id" +
			" WHERE a.category = ? AND (a.state ->> 'Status' = 'cancelled') <> (b.state ->> 'Status' = 'cancelled')"
	)
	for _, check := range []struct{ query, first, second, what string }{
		{alone, orderCategory, shipmentCategory, "orders have no shipment"},
		{alone, shipmentCategory, orderCategory, "shipments have no order"},
		{unequal, shipmentCategory, orderCategory, "orders and their shipments are not both cancelled"},
	} {
		var n int64
		var example *string
		if err := db.NewRaw(check.query, check.first, check.second).Scan(ctx, &n, &example); err != nil {
			return err
		}
		if n > 0 {
			b.differ("%d %s, such as %s", n, check.what, *example)
		}
	}
	return nil
}
