package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/nats/embedded"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/examples/ordering/billing"
	"github.com/waybill-go/waybill/examples/ordering/ordering"
	"github.com/waybill-go/waybill/examples/ordering/shipping"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/sqlite"
)

const (
	partnerPrefix  = "partner."
	partnerSubject = partnerPrefix + "ordering.order"

	// What comes to rest without balancing will not balance later.
	restTimeout = time.Minute
	restPoll    = 100 * time.Millisecond

	// lease is short, so that a run after a crash goes on within seconds also where
	// it can't be known that the process of the last one is dead.
	lease = 5 * time.Second

	// payWithin is short, so that orders without a payment don't keep people waiting.
	payWithin = 3 * time.Second
)

// demo is the whole example in one process: the three contexts, their engine, the
// databases and brokers, and the partner.
type demo struct {
	dir  string
	size int
	json bool

	db          uow.Provider
	nats        *embedded.Broker
	orders      *uow.Manager
	engine      *engine.Engine
	out, stderr io.Writer // for people
}

// result is how it ended, over all runs with the same directory.
type result struct {
	Orders          int64            `json:"orders"`
	Cancelled       int64            `json:"cancelled"`
	Events          int64            `json:"events"`
	Published       map[string]int64 `json:"published"`
	Shipments       int64            `json:"shipments"`
	PartnerReceived int64            `json:"partner_received"`
	Duplicates      int64            `json:"duplicates"`
	Seconds         float64          `json:"seconds"`
	OK              bool             `json:"ok"`
	Commands        int64            `json:"commands"`
	sales

	differences []string
}

func (d *demo) run(ctx context.Context, stdout, stderr io.Writer) (err error) {
	begin := time.Now()
	d.out, d.stderr = stdout, stderr
	if d.json {
		d.out = stderr
	}
	defer func() { err = errors.Join(err, d.close(ctx)) }()
	if err := d.open(ctx); err != nil {
		return err
	}
	fmt.Fprintf(d.out, "Waybill: ordering, shipping and billing on SQLite and NATS, all in %s (%s)\n\n", d.dir, d.nats.URL())
	if err := d.start(ctx); err != nil {
		return err
	}
	r, err := d.work(ctx)
	if ctx.Err() != nil {
		err = errors.New("stopped before the books were closed; the next run goes on")
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := errors.Join(err, d.engine.Stop(stop)); err != nil {
		return err
	}
	r.Seconds = time.Since(begin).Round(time.Millisecond).Seconds()
	if err := d.print(r, stdout); err != nil || r.OK {
		return err
	}
	return errUnbalanced
}

// open opens the broker and the database. The broker's directory belongs to one
// process, and with it all of dir.
func (d *demo) open(ctx context.Context) (err error) {
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return err
	}
	if d.nats, err = embedded.Open(ctx, embedded.Config{Dir: filepath.Join(d.dir, "nats"), Listen: "127.0.0.1:0"}); err != nil {
		return fmt.Errorf("--dir %s can't be used: %w", d.dir, err)
	}
	d.db, err = sqlite.Open(ctx, sqlite.Config{Path: filepath.Join(d.dir, "ordering.db")})
	return err
}

func (d *demo) close(ctx context.Context) error {
	var errs []error
	if d.nats != nil {
		errs = append(errs, closed(ctx, d.nats))
	}
	if d.db != nil {
		errs = append(errs, d.db.Close())
	}
	return errors.Join(errs...)
}

// start puts the contexts together and starts their engine.
func (d *demo) start(ctx context.Context) (err error) {
	d.orders, err = uow.New(uow.Config{
		Domain:    ordering.Selling(payWithin),
		Providers: []uow.Provider{d.db},
		External:  []outbox.Target{{Broker: "partner"}},
	})
	if err != nil {
		return err
	}
	shipments, err1 := uow.New(uow.Config{Domain: shipping.Domain, Providers: []uow.Provider{d.db}})
	charges, err2 := uow.New(uow.Config{Domain: billing.Domain, Providers: []uow.Provider{d.db}})
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if err := engine.Migrate(ctx, d.orders, shipments, charges); err != nil {
		return err
	}
	d.engine, err = engine.New(engine.Config{
		Contexts: []engine.Context{selling(d.orders), parcels(shipments), billing.Context(charges)},
		Brokers: map[string]broker.Broker{
			"default": d.nats,
			"partner": broker.Prefixed(d.nats, partnerPrefix),
		},
		Outbox: outbox.Config{
			Lease:     lease,
			Retry:     outbox.RetryPolicy{BaseDelay: time.Second},
			Retention: outbox.Retention{Published: -1}, // the books are closed over all runs
		},
		StopTimeout: stopTimeout,
	})
	if err != nil {
		return err
	}
	return d.engine.Start(ctx)
}

// work places the orders and waits until all that follows has happened.
func (d *demo) work(ctx context.Context) (*result, error) {
	partner, err := newPartner(ctx, d.nats.URL(), d.nats.KeyFile(), partnerSubject)
	if err != nil {
		return nil, err
	}
	defer partner.close()

	begin := time.Now()
	fmt.Fprintf(d.out, "Placing %d orders, cancelling every tenth …", d.size)
	w := &writing{
		units: d.orders, orders: repository.New[*ordering.Order](d.orders),
		writers: defaultWriters, stdout: io.Discard, stderr: d.stderr,
	}
	if err := w.run(ctx, demoOrders(d.size)); err != nil {
		return nil, err
	}
	fmt.Fprintf(d.out, " %.1f s\n", time.Since(begin).Seconds())

	begin = time.Now()
	fmt.Fprint(d.out, "Publishing, charging, shipping, telling the partner …")
	r, err := d.rest(ctx, partner)
	fmt.Fprintf(d.out, " %.1f s\n", time.Since(begin).Seconds())
	return r, err
}

// demoOrders gives every seventh order a note, and cancels every tenth. Of every 25, one
// is paid for late, one never, and one by somebody who has no credit.
func demoOrders(n int) iter.Seq[job] {
	kinds := map[int]billing.Kind{13: billing.Late, 18: billing.Never, 23: billing.Broke}
	return func(yield func(job) bool) {
		for i := 1; i <= n; i++ {
			j := randomOrder(fmt.Sprintf("%s-%d", cmp.Or(kinds[i%25], "customer"), 1+rand.IntN(defaultCustomers)))
			j.note, j.cancel = i%7 == 0, i%10 == 0
			if !yield(j) {
				return
			}
		}
	}
}

// rest looks until the books balance, or nothing happens any more.
func (d *demo) rest(ctx context.Context, p *partner) (*result, error) {
	var last string
	moved := time.Now()
	for {
		r, state, err := d.look(ctx, p)
		if err != nil || r.OK || ctx.Err() != nil {
			return r, err
		}
		if state != last {
			last, moved = state, time.Now()
		} else if time.Since(moved) > restTimeout {
			return r, nil
		}
		select {
		case <-time.After(restPoll):
		case <-ctx.Done():
		}
	}
}

// look closes the books as they are. The state is different while something
// happens.
func (d *demo) look(ctx context.Context, p *partner) (r *result, state string, err error) {
	b, err := readBooks(ctx, d.db, []string{"default", "partner"})
	if err != nil {
		return nil, "", err
	}
	heard := p.heard()
	r = &result{
		Orders: b.Orders, Cancelled: b.Cancelled, Shipments: b.Shipments,
		Events:          b.orderEvents + b.shipmentEvents + b.chargeEvents,
		Published:       map[string]int64{},
		PartnerReceived: int64(len(heard)),
		sales:           b.sales,
	}
	for _, s := range d.engine.Subscriptions() {
		r.Duplicates += s.Duplicates
	}
	for name, counts := range b.Outbox {
		r.Published[name] = counts[outbox.Published]
	}
	if r.Commands, err = d.commands(ctx); err != nil {
		return nil, "", err
	}
	r.Published["default"] -= r.Commands
	for _, times := range heard {
		r.Duplicates += int64(times - 1)
	}
	if n := r.Published["default"]; n != r.Events {
		b.differ("%d events happened, and %d were published to default", r.Events, n)
	}
	if n := r.Published["partner"]; n != r.Orders+r.Cancelled {
		b.differ("%d orders were placed or cancelled, and %d events were published to partner", r.Orders+r.Cancelled, n)
	}
	if err := d.compare(ctx, b, p, heard); err != nil {
		return nil, "", err
	}
	r.differences, r.OK = b.Differences, len(b.Differences) == 0
	return r, fmt.Sprint(*b, r.PartnerReceived), nil
}

// commands are the published messages that are no events: of commands, of refusals, and
// of timers. All others are of aggregates, and stand for a change.
func (d *demo) commands(ctx context.Context) (n int64, err error) {
	err = d.db.Reader().NewRaw("SELECT count(*) FROM outbox WHERE target_broker = 'default' AND status = ? AND stream_category NOT IN (?)",
		outbox.Published, bun.List([]string{orderCategory, shipmentCategory, chargeCategory})).Scan(ctx, &n)
	return n, err
}

// compare holds what the partner has heard against what was published to it, by
// the messages' ids.
func (d *demo) compare(ctx context.Context, b *books, p *partner, heard map[string]int) error {
	var published []string
	err := d.db.Reader().NewRaw("SELECT message_id FROM outbox WHERE target_broker = ? AND status = ?", "partner", outbox.Published).Scan(ctx, &published)
	if err != nil {
		return err
	}
	missed := slices.DeleteFunc(slices.Clone(published), func(id string) bool { return heard[id] > 0 })
	for _, id := range published {
		delete(heard, id)
	}
	if len(missed) > 0 {
		b.differ("%d messages have not come to the partner, such as %s", len(missed), missed[0])
	}
	if len(heard) > 0 {
		b.differ("%d messages came to the partner and are not published", len(heard))
	}
	if n := p.unreadable(); n > 0 {
		b.differ("%d messages can't be read by the partner", n)
	}
	return nil
}

func (d *demo) print(r *result, stdout io.Writer) error {
	table := []struct {
		what string
		n    int64
	}{
		{"orders", r.Orders},
		{"cancelled", r.Cancelled},
		{"events", r.Events},
		{"commands and timers", r.Commands},
		{"rows published to default", r.Published["default"] + r.Commands},
		{"rows published to partner", r.Published["partner"]},
		{"shipments", r.Shipments},
		{"of them dispatched", r.Dispatched},
		{"purchases that have ended", r.Purchases},
		{"cents paid", r.Paid},
		{"cents refunded", r.Refunded},
		{"cents shipped", r.Shipped},
		{"messages the partner received", r.PartnerReceived},
		{"duplicates absorbed", r.Duplicates},
	}
	fmt.Fprintln(d.out)
	for _, line := range table {
		fmt.Fprintf(d.out, "  %-30s %9d\n", line.what, line.n)
	}
	fmt.Fprintf(d.out, "  %-30s %8.1fs\n\n", "time", r.Seconds)
	if r.OK {
		fmt.Fprintln(d.out, "The books balance: one shipment for every order, dispatched if it is paid for and cancelled if not, and every event where it belongs.")
	}
	for _, difference := range r.differences {
		fmt.Fprintf(d.out, "  - %s\n", difference)
	}
	if d.json {
		return json.NewEncoder(stdout).Encode(r)
	}
	return nil
}
