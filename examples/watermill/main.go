// Command watermill is the ordering example on a broker of Watermill: what `ordering
// serve` does, on Redis Streams. Everything else is ordering's own, which asks no
// broker:
//
//	go run ./examples/ordering --config examples/watermill/waybill.yaml migrate
//	go run -C examples/watermill . --config waybill.yaml
//	go run ./examples/ordering --config examples/watermill/waybill.yaml place --cancel-percent 10
//	go run ./examples/ordering --config examples/watermill/waybill.yaml verify --wait 90s
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/engine/config"
	"github.com/waybill-go/waybill/examples/ordering/ordering"
	"github.com/waybill-go/waybill/examples/ordering/shipping"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
	"github.com/waybill-go/waybill/uow/sqlite"

	"github.com/waybill-go/waybill/examples/watermill/redis"
)

const (
	stopTimeout  = 20 * time.Second
	closeTimeout = 5 * time.Second
)

func main() {
	file := flag.String("config", "waybill.yaml", "the configuration file")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, *file, os.Stderr); err != nil && (ctx.Err() == nil || !errors.Is(err, context.Canceled)) {
		fmt.Fprintf(os.Stderr, "watermill: %v\n", err)
		os.Exit(1)
	}
}

// serve runs the engine until ctx is done.
func serve(ctx context.Context, file string, stderr io.Writer) (err error) {
	f, err := config.Parse(file)
	if err != nil {
		return err
	}
	s, err := f.Open(ctx, ordering.Domain, config.Kinds{
		Providers: map[string]config.OpenProvider{"postgres": postgres.FromSettings, "sqlite": sqlite.FromSettings},
		Brokers:   map[string]broker.Opener{"watermill": redis.FromSettings},
	})
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		err = errors.Join(err, s.Close(ctx))
	}()
	shipments, err := s.UnitsFor(shipping.Domain)
	if err != nil {
		return err
	}
	orders := shipping.Orders(shipments)
	orders.Broker, orders.Handlers = f.Broker, inAnyOrder(shipments)

	s.Engine.Units = append(s.Engine.Units, shipments)
	s.Engine.Subscriptions = []subscription.Stream{orders}
	s.Engine.StopTimeout = stopTimeout
	eng, err := engine.New(s.Engine)
	if err != nil {
		return err
	}
	if err := eng.Start(ctx); err != nil {
		return err
	}
	if addr := eng.Addr(); addr != "" {
		fmt.Fprintf(stderr, "HTTP listens on http://%s\n", addr)
	}
	return eng.Run(ctx)
}

// inAnyOrder are shipping's handlers for a broker that keeps no order: what is said of
// an order may come before the order, and then the shipment is made of it.
func inAnyOrder(units *uow.Manager) []subscription.Handler {
	shipments := repository.New[*shipping.Shipment](units)
	change := func(ctx context.Context, id string, do func(*shipping.Shipment) error) error {
		s, err := shipments.Get(ctx, id)
		if _, ok := errors.AsType[*repository.NotFoundError](err); ok {
			s, err = shipping.Prepare(id), nil
		}
		if err == nil {
			err = do(s)
		}
		if err != nil {
			return err
		}
		return shipments.Save(ctx, s)
	}
	return []subscription.Handler{
		subscription.On(func(ctx context.Context, e shipping.OrderPlaced) error {
			return change(ctx, e.OrderID, func(*shipping.Shipment) error { return nil })
		}),
		subscription.On(func(ctx context.Context, e shipping.NoteAdded) error {
			return change(ctx, e.OrderID, func(s *shipping.Shipment) error {
				if s.Status == shipping.Cancelled {
					return nil
				}
				return s.AddLabel(e.Note)
			})
		}),
		subscription.On(func(ctx context.Context, e shipping.OrderCancelled) error {
			return change(ctx, e.OrderID, (*shipping.Shipment).Cancel)
		}),
	}
}
