package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/kafka"
	"github.com/waybill-go/waybill/broker/nats/embedded"
	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/engine/config"
	"github.com/waybill-go/waybill/examples/ordering/billing"
	"github.com/waybill-go/waybill/examples/ordering/ordering"
	"github.com/waybill-go/waybill/examples/ordering/shipping"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
	"github.com/waybill-go/waybill/uow/sqlite"
)

const (
	// Together below the 30 s that a supervisor usually grants.
	stopTimeout  = 20 * time.Second
	closeTimeout = 5 * time.Second
)

// kinds are the databases and brokers that a file may name.
func (p program) kinds() config.Kinds {
	return config.Kinds{
		Providers: map[string]config.OpenProvider{"postgres": postgres.NewServers().FromSettings, "sqlite": sqlite.FromSettings},
		Brokers: map[string]broker.Opener{
			"kafka": kafka.FromSettings,
			"nats": func(ctx context.Context, s broker.Settings) (broker.Broker, error) {
				b, err := embedded.Listening("127.0.0.1:0")(ctx, s)
				if own, ok := b.(*embedded.Broker); ok && own.URL() != "" {
					fmt.Fprintf(p.stderr, "NATS listens on %s, to who has the key in %s\n", own.URL(), own.KeyFile())
				}
				return b, err
			},
		},
	}
}

// file reads the configuration.
func (p program) file() (*config.File, error) {
	f, err := config.Parse(p.config)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w; give --config FILE before the command", err)
	}
	return f, err
}

// databases are the two contexts without their brokers: to write, to look and to
// migrate. Whoever asks for them calls done.
func (p program) databases(ctx context.Context) (orders, shipments *uow.Manager, done func(), err error) {
	f, err := p.file()
	if err != nil {
		return nil, nil, nil, err
	}
	s, err := f.OpenDatabases(ctx, ordering.Domain, p.kinds())
	if err != nil {
		return nil, nil, nil, err
	}
	shipments, err = s.UnitsFor(shipping.Domain)
	if err != nil {
		return nil, nil, nil, errors.Join(err, closed(ctx, s))
	}
	return s.Units, shipments, func() { _ = closed(ctx, s) }, nil
}

// closed closes, also if ctx is done.
func closed(ctx context.Context, s interface{ Close(context.Context) error }) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	return s.Close(ctx)
}

// parcels is shipping at work.
func parcels(units *uow.Manager) engine.Context {
	orders := shipping.Orders(units)
	orders.Broker = units.Broker()
	return engine.Context{Units: units, Subscriptions: []subscription.Stream{orders}}
}

// selling is ordering at work, with its process: see [ordering.Selling].
func selling(units *uow.Manager) engine.Context {
	orders := repository.New[*ordering.Order](units)
	return engine.Context{Commands: command.Must(command.Config{Units: units, Handlers: []command.Handler{
		command.Update(orders, func(o *ordering.Order, _ ordering.ReleaseOrder) error { return command.Refuse(o.Release()) }),
		command.Update(orders, func(o *ordering.Order, c ordering.CancelOrder) error {
			if err := o.Cancel(c.Reason); !errors.Is(err, ordering.ErrCancelled) {
				return command.Refuse(err)
			}
			return nil // the customer was faster
		}),
	}})}
}

func (p program) migrate(ctx context.Context, args []string) error {
	if err := parse(newFlags(), args); err != nil {
		return err
	}
	orders, shipments, done, err := p.databases(ctx)
	if err != nil {
		return err
	}
	defer done()
	return engine.Migrate(ctx, orders, shipments)
}

func (p program) serve(ctx context.Context, args []string) error {
	flags := newFlags()
	calls := flags.Int("calls", 0, "")
	payWithin := flags.Duration("pay-within", 0, "")
	if err := parse(flags, args); err != nil {
		return err
	}
	if *calls < 0 {
		return usagef("--calls is %d: at least 1, or 0 for what the file says", *calls)
	}
	if *payWithin < 0 {
		return usagef("--pay-within is %v: above 0, or 0 for orders that nobody charges for", *payWithin)
	}
	f, err := p.file()
	if err != nil {
		return err
	}
	f.Outbox.Calls = cmp.Or(*calls, f.Outbox.Calls)
	return unlessStopped(ctx, p.serveFile(ctx, f, *payWithin))
}

// unlessStopped is err, but nil if it comes of being told to stop.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// serveFile runs the engine until ctx is done. Without a time to pay nobody charges for
// orders: they are placed and cancelled, and their shipments with them.
func (p program) serveFile(ctx context.Context, f *config.File, payWithin time.Duration) (err error) {
	d := ordering.Domain
	if payWithin > 0 {
		d = ordering.Selling(payWithin)
	}
	s, err := f.Open(ctx, d, p.kinds())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closed(ctx, s)) }()
	shipments, err := s.UnitsFor(shipping.Domain)
	if err != nil {
		return err
	}
	s.Engine.Contexts = []engine.Context{parcels(shipments)}
	if payWithin > 0 {
		charges, err := s.UnitsFor(billing.Domain)
		if err != nil {
			return err
		}
		s.Engine.Contexts = append(s.Engine.Contexts, selling(s.Units), billing.Context(charges))
	}
	s.Engine.StopTimeout = stopTimeout
	eng, err := engine.New(s.Engine)
	if err != nil {
		return err
	}
	if err := eng.Start(ctx); err != nil {
		return err
	}
	if addr := eng.Addr(); addr != "" {
		fmt.Fprintf(p.stderr, "HTTP listens on http://%s\n", addr)
	}
	return eng.Run(ctx)
}
