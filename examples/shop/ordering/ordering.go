// Package ordering takes orders, and sees each through to its end: see [Purchase]. What
// it knows of billing and shipping it declares in its own words.
package ordering

import (
	"context"
	"errors"
	"time"

	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/projection"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

// Order is what a customer wants.
type Order struct {
	domain.Root
	CustomerID, Article string
	Quantity            int
	Cents               int64
	Status              string // placed, completed or cancelled
}

// Commands.
type (
	PlaceOrder struct {
		OrderID    string `json:"order_id"`
		CustomerID string `json:"customer_id"`
		Article    string `json:"article"`
		Quantity   int    `json:"quantity"`
	}
	CompleteOrder struct {
		OrderID string `json:"order_id"`
	}
	CancelOrder struct {
		OrderID string `json:"order_id"`
		Reason  string `json:"reason"`
	}
)

// Events.
type (
	OrderPlaced struct {
		OrderID    string    `json:"order_id"`
		CustomerID string    `json:"customer_id"`
		Article    string    `json:"article"`
		Quantity   int       `json:"quantity"`
		Cents      int64     `json:"cents"`
		PayBy      time.Time `json:"pay_by"`
	}
	OrderCompleted CompleteOrder
	OrderCancelled CancelOrder
)

// What ordering refuses.
var (
	ErrUnknown = errors.New("there is no such article, or none is ordered")
	ErrOver    = errors.New("the order is completed or cancelled already")
)

// prices are in cents.
var prices = map[string]int64{"cup": 900, "tea": 450}

// Domain is what ordering keeps, does, tells and hears.
var Domain = domain.MustNew("ordering",
	domain.Aggregate[*Order]("order",
		domain.Event[OrderPlaced](domain.Published()),
		domain.Event[OrderCompleted](domain.Published()),
		domain.Event[OrderCancelled](domain.Published()),
	),
	domain.Command[PlaceOrder](domain.KeyedBy("order_id")),
	domain.Command[CompleteOrder](domain.KeyedBy("order_id")),
	domain.Command[CancelOrder](domain.KeyedBy("order_id")),
	domain.ForeignCommand[AskPayment]("billing", "Billing.AskPayment.v1", domain.KeyedBy("order_id")),
	domain.ForeignCommand[ReturnPayment]("billing", "Billing.ReturnPayment.v1", domain.KeyedBy("order_id")),
	domain.ForeignCommand[SendParcel]("shipping", "Shipping.SendParcel.v1", domain.KeyedBy("order_id")),
	domain.Foreign[PaymentReceived]("Billing.PaymentReceived.v1", domain.From("billing::payment")),
	domain.Foreign[PaymentReturned]("Billing.PaymentReturned.v1", domain.From("billing::payment")),
	domain.Foreign[ParcelSent]("Shipping.ParcelSent.v1", domain.From("shipping::parcel")),
	purchase,
)

// place is a new order, to be paid for by then.
func place(c PlaceOrder, payBy time.Time) (*Order, error) {
	price, known := prices[c.Article]
	if !known || c.Quantity < 1 {
		return nil, ErrUnknown
	}
	o := &Order{
		Root: domain.RootWithID(c.OrderID), CustomerID: c.CustomerID, Article: c.Article,
		Quantity: c.Quantity, Cents: price * int64(c.Quantity), Status: "placed",
	}
	o.Raise(OrderPlaced{c.OrderID, c.CustomerID, c.Article, c.Quantity, o.Cents, payBy})
	return o, nil
}

func (o *Order) end(status string, event any) error {
	if o.Status != "placed" {
		return ErrOver
	}
	o.Status = status
	o.Raise(event)
	return nil
}

func (o *Order) complete(c CompleteOrder) error { return o.end("completed", OrderCompleted(c)) }

func (o *Order) cancel(c CancelOrder) error { return o.end("cancelled", OrderCancelled(c)) }

// App is ordering at work.
type App struct {
	Orders   *repository.Repository[*Order]
	Commands *command.Handlers
	units    *uow.Manager
}

// New wires it.
func New(units *uow.Manager, payWithin time.Duration) *App {
	orders := repository.New[*Order](units)
	return &App{Orders: orders, units: units, Commands: command.Must(command.Config{Units: units, Handlers: []command.Handler{
		command.On(func(ctx context.Context, c PlaceOrder) error {
			o, err := place(c, domain.Now(ctx).Add(payWithin))
			if err != nil {
				return err
			}
			return orders.Save(ctx, o)
		}),
		command.Update(orders, (*Order).complete),
		command.Update(orders, (*Order).cancel),
	}})}
}

// Context is what an engine runs.
func (a *App) Context() engine.Context {
	return engine.Context{Commands: a.Commands, Projections: []projection.Projection{board}}
}
