package process_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/domain/domaintest"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/process"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/sqlite"
)

// Order is shipped once it is paid, or cancelled.
type Order struct {
	domain.Root
	Status string
}

type (
	PlaceOrder struct {
		OrderID string `json:"order_id"`
	}
	PayOrder struct {
		OrderID string `json:"order_id"`
	}
	ShipOrder struct {
		OrderID string `json:"order_id"`
	}
	CancelOrder struct {
		OrderID string `json:"order_id"`
		Reason  string `json:"reason"`
	}
	OrderPlaced struct {
		OrderID string `json:"order_id"`
	}
	OrderPaid struct {
		OrderID string `json:"order_id"`
	}
	OrderEnded struct {
		OrderID string `json:"order_id"`
	}
)

// Checkout sees to it that an order is shipped when it is paid, and cancelled if it isn't
// in time.
type Checkout struct {
	domain.ProcessRoot
	Placed time.Time
}

func (p *Checkout) OrderPlaced(OrderPlaced) error {
	p.Placed = p.Now()
	p.SetTimer("pay-by", p.Placed.Add(time.Hour))
	return nil
}

func (p *Checkout) OrderPaid(OrderPaid) error {
	p.Send(ShipOrder{p.ID()})
	p.End()
	return nil
}

func (p *Checkout) Unpaid() error {
	p.Send(CancelOrder{p.ID(), "not paid in time"})
	p.End()
	return nil
}

var shop = domain.MustNew("shop",
	domain.Aggregate[*Order]("order", domain.Event[OrderPlaced](), domain.Event[OrderPaid](), domain.Event[OrderEnded]()),
	domain.Command[PlaceOrder](domain.KeyedBy("order_id")),
	domain.Command[PayOrder](domain.KeyedBy("order_id")),
	domain.Command[ShipOrder](domain.KeyedBy("order_id")),
	domain.Command[CancelOrder](domain.KeyedBy("order_id")),
	domain.Process[*Checkout]("checkout",
		domain.CorrelatedBy("order_id"),
		domain.Starts((*Checkout).OrderPlaced),
		domain.Hears((*Checkout).OrderPaid),
		domain.OnTimer("pay-by", (*Checkout).Unpaid),
	),
)

func TestCheckout(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	domaintest.GivenProcess[*Checkout](t, shop, now, OrderPlaced{"o1"}).
		ThenTimer("pay-by", now.Add(time.Hour)).
		When(OrderPaid{"o1"}).ThenSent(ShipOrder{"o1"}).ThenEnded()
	domaintest.GivenProcess[*Checkout](t, shop, now, OrderPlaced{"o1"}).
		WhenDue("pay-by").ThenSent(CancelOrder{"o1", "not paid in time"}).ThenEnded().
		When(OrderPaid{"o1"}).ThenSent() // It comes too late.
}

func (o *Order) pay(PayOrder) error {
	o.Status = "paid"
	o.Raise(OrderPaid{o.ID()})
	return nil
}

func (o *Order) ship(ShipOrder) error { return o.end("shipped") }

func (o *Order) cancel(c CancelOrder) error { return o.end(c.Reason) }

func (o *Order) end(status string) error {
	o.Status = status
	o.Raise(OrderEnded{o.ID()})
	return nil
}

func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "shop")
	must(err)
	defer func() { must(os.RemoveAll(dir)) }()
	db, err := sqlite.Open(ctx, sqlite.Config{Path: filepath.Join(dir, "shop.db")})
	must(err)
	defer func() { must(db.Close()) }()
	units, err := uow.New(uow.Config{Domain: shop, Providers: []uow.Provider{db}})
	must(err)
	must(engine.Migrate(ctx, units))
	orders := repository.New[*Order](units)
	commands := command.Must(command.Config{Units: units, Handlers: []command.Handler{
		command.Create(orders, func(c PlaceOrder) (*Order, error) {
			o := &Order{Root: domain.RootWithID(c.OrderID), Status: "placed"}
			o.Raise(OrderPlaced(c))
			return o, nil
		}),
		command.Update(orders, (*Order).pay),
		command.Update(orders, (*Order).ship),
		command.Update(orders, (*Order).cancel),
	}})
	e, err := engine.New(engine.Config{
		Contexts: []engine.Context{{Units: units, Commands: commands}},
		Brokers:  map[string]broker.Broker{"default": memory.New(memory.Config{})},
	})
	must(err)
	must(e.Start(ctx))
	defer func() { must(e.Stop(ctx)) }()

	must(commands.Do(ctx, PlaceOrder{"o1"}))
	must(commands.Do(ctx, PayOrder{"o1"}))
	for range time.Tick(time.Millisecond) {
		o, err := orders.Get(ctx, "o1")
		must(err)
		if o.Status == "shipped" {
			break
		}
	}
	_, about, err := process.Get[*Checkout](ctx, units, "o1")
	must(err)
	fmt.Println(about.Status, about.Version)
	// Output:
	// ended 2
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
