package main

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

const (
	orderCategory    = "ordering::order"
	shipmentCategory = "shipping::shipment"
	chargeCategory   = "billing::charge"
	purchaseProcess  = "ordering.purchase"
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
	sales

	cancelledShipments int64
	// Every change of an order, a shipment or a charge is one event.
	orderEvents, shipmentEvents, chargeEvents int64
}

// sales are what became of orders that are charged for. There are none where only
// orders are placed and shipments prepared.
type sales struct {
	Released   int64 `json:"released"`   // orders
	Dispatched int64 `json:"dispatched"` // shipments
	Charges    int64 `json:"charges"`
	// Cents that came, that went back, and that the orders are worth that were released.
	Paid     int64 `json:"paid_cents"`
	Refunded int64 `json:"refunded_cents"`
	Shipped  int64 `json:"shipped_cents"`
	// Purchases are the processes that have ended, and Running those that have not.
	Purchases int64 `json:"purchases"`
	Running   int64 `json:"purchases_running"`
	Timers    int64 `json:"timers"` // that are still to ring
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
	if err := b.match(ctx, db.Reader(), everywhere); err != nil {
		return nil, err
	}
	if b.Charges+b.Purchases+b.Running > 0 {
		b.settle()
		if err := b.match(ctx, db.Reader(), whereCharged); err != nil {
			return nil, err
		}
	}
	b.OK = len(b.Differences) == 0
	return b, nil
}

// settle compares what must be equal once every order is paid for and shipped, or
// cancelled.
func (b *books) settle() {
	if n := b.Orders - b.Released - b.Cancelled; n > 0 {
		b.differ("%d orders are neither released nor cancelled yet", n)
	}
	if b.Released != b.Dispatched {
		b.differ("%d orders are released, and %d shipments dispatched", b.Released, b.Dispatched)
	}
	if b.Running > 0 {
		b.differ("%d purchases have not ended yet", b.Running)
	}
	if b.Timers > 0 {
		b.differ("%d timers wait", b.Timers)
	}
	if b.Paid-b.Refunded != b.Shipped {
		b.differ("%d cents were paid, %d of them were refunded, and what was shipped is worth %d", b.Paid, b.Refunded, b.Shipped)
	}
}

// count begins with one statement, so what that compares was so at one moment. What is
// read after it can only be further on.
func (b *books) count(ctx context.Context, db bun.IDB) error {
	type key struct{ category, status string }
	found := map[key]struct{ n, changes int64 }{}
	rows, err := db.QueryContext(ctx, "SELECT category, state ->> 'Status', count(*), CAST(sum(version) AS bigint) FROM documents"+
		" WHERE category IN (?) AND state IS NOT NULL GROUP BY 1, 2", bun.List([]string{orderCategory, shipmentCategory, chargeCategory}))
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var k key
		var v struct{ n, changes int64 }
		if err := rows.Scan(&k.category, &k.status, &v.n, &v.changes); err != nil {
			return err
		}
		found[k] = v
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for k, v := range found {
		switch k.category {
		case orderCategory:
			b.Orders, b.orderEvents = b.Orders+v.n, b.orderEvents+v.changes
		case shipmentCategory:
			b.Shipments, b.shipmentEvents = b.Shipments+v.n, b.shipmentEvents+v.changes
		case chargeCategory:
			b.Charges, b.chargeEvents = b.Charges+v.n, b.chargeEvents+v.changes
		}
	}
	b.Cancelled, b.Released = found[key{orderCategory, "cancelled"}].n, found[key{orderCategory, "released"}].n
	b.cancelledShipments, b.Dispatched = found[key{shipmentCategory, "cancelled"}].n, found[key{shipmentCategory, "dispatched"}].n
	if err := b.countSales(ctx, db); err != nil {
		return err
	}
	inbox, err := subscription.CountInbox(ctx, db)
	if err != nil {
		return err
	}
	letters, err := subscription.CountDeadLetters(ctx, db)
	b.Inbox = inbox["shipping"]
	for _, name := range []string{"shipping", "ordering.commands", "billing.commands", purchaseProcess} {
		b.DeadLetters += letters[name]
	}
	return err
}

// countSales counts money, purchases and timers.
func (b *books) countSales(ctx context.Context, db bun.IDB) error {
	lines := "json_each(state, '$.Lines') AS l" // l is one line
	amount := "l.value ->> 'Amount'"
	if db.Dialect().Name() == dialect.PG {
		lines, amount = "json_array_elements(state -> 'Lines') AS l", "l ->> 'Amount'"
	}
	for _, c := range []struct {
		query string
		args  []any
		into  []any
	}{
		{"SELECT CAST(COALESCE(sum(CAST(state ->> 'Paid' AS bigint)), 0) AS bigint), CAST(COALESCE(sum(CAST(state ->> 'Refunded' AS bigint)), 0) AS bigint) FROM documents WHERE category = ?", []any{chargeCategory}, []any{&b.Paid, &b.Refunded}},
		{"SELECT CAST(COALESCE(sum(CAST(" + amount + " AS bigint)), 0) AS bigint) FROM documents, " + lines + " WHERE category = ? AND state ->> 'Status' = 'released'", []any{orderCategory}, []any{&b.Shipped}},
		{"SELECT COALESCE(sum(CASE WHEN status = 'ended' THEN 1 ELSE 0 END), 0), COALESCE(sum(CASE WHEN status = 'ended' THEN 0 ELSE 1 END), 0) FROM processes WHERE process = ?", []any{purchaseProcess}, []any{&b.Purchases, &b.Running}},
		{"SELECT count(*) FROM timers WHERE owner LIKE 'ordering::%' OR owner LIKE 'billing::%'", nil, []any{&b.Timers}},
	} {
		if err := db.NewRaw(c.query, c.args...).Scan(ctx, c.into...); err != nil {
			return err
		}
	}
	return nil
}

// check is a query for what is wrong, with how much there is and an example.
type check struct {
	query string
	args  []any
	what  string
}

const (
	alone   = "SELECT count(*), min(id) FROM documents AS a WHERE category = ? AND state IS NOT NULL AND NOT EXISTS (SELECT 1 FROM documents AS b WHERE b.category = ? AND b.id = a.id AND b.state IS NOT NULL)"
	unequal = "SELECT count(*), min(a.id) FROM documents AS a JOIN documents AS b ON b.category = ? AND b.id = a.id" +
		" WHERE a.category = ? AND (a.state ->> 'Status' = ?) <> (b.state ->> 'Status' = ?)"
)

// What must be so one by one, and what where orders are charged for.
var (
	everywhere = []check{
		{alone, []any{orderCategory, shipmentCategory}, "orders have no shipment"},
		{alone, []any{shipmentCategory, orderCategory}, "shipments have no order"},
		{unequal, []any{shipmentCategory, orderCategory, "cancelled", "cancelled"}, "orders and their shipments are not both cancelled"},
	}
	whereCharged = []check{
		{alone, []any{orderCategory, chargeCategory}, "orders have no charge"},
		{unequal, []any{shipmentCategory, orderCategory, "released", "dispatched"}, "orders are not both released and shipped"},
		{unequal, []any{chargeCategory, orderCategory, "released", "paid"}, "orders are not both released and paid for"},
	}
)

// match compares what belongs to an order one by one.
func (b *books) match(ctx context.Context, db bun.IDB, checks []check) error {
	for _, c := range checks {
		var n int64
		var example *string
		if err := db.NewRaw(c.query, c.args...).Scan(ctx, &n, &example); err != nil {
			return err
		}
		if n > 0 {
			b.differ("%d %s, such as %s", n, c.what, *example)
		}
	}
	return nil
}
