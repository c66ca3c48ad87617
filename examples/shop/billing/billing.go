// Package billing takes money for orders, and gives it back. It is a context of its own:
// others ask it by commands, and hear what became of that. Its aggregate is event-sourced.
package billing

import (
	"errors"

	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

// Payment is what is to be paid for an order, and has its number.
type Payment struct {
	domain.Root
	Cents  int64
	Status string // asked, received, returned or dropped
}

// Commands.
type (
	AskPayment struct {
		OrderID string `json:"order_id"`
		Cents   int64  `json:"cents"`
	}
	Pay struct {
		OrderID string `json:"order_id"`
	}
	ReturnPayment struct {
		OrderID string `json:"order_id"`
	}
)

// Events.
type (
	PaymentAsked    AskPayment
	PaymentReceived AskPayment
	PaymentReturned AskPayment
	PaymentDropped  Pay // Nobody waits for it any more.
)

// ErrNotAsked is a payment that nobody waits for.
var ErrNotAsked = errors.New("there is nothing to pay")

// Domain is what billing keeps, does and tells.
var Domain = domain.MustNew("billing",
	domain.Aggregate[*Payment]("payment",
		domain.Event[PaymentAsked](), domain.Event[PaymentDropped](),
		domain.Event[PaymentReceived](domain.Published()), domain.Event[PaymentReturned](domain.Published()),
	),
	domain.Command[AskPayment](domain.KeyedBy("order_id"), domain.FromOthers()),
	domain.Command[ReturnPayment](domain.KeyedBy("order_id"), domain.FromOthers()),
	domain.Command[Pay](domain.KeyedBy("order_id")),
)

func ask(c AskPayment) (*Payment, error) {
	p := &Payment{Root: domain.RootWithID(c.OrderID)}
	domain.Record(p, PaymentAsked(c))
	return p, nil
}

// Apply is how the events make a payment.
func (p *Payment) Apply(event any) {
	switch e := event.(type) {
	case PaymentAsked:
		p.Cents, p.Status = e.Cents, "asked"
	case PaymentReceived:
		p.Status = "received"
	case PaymentReturned:
		p.Status = "returned"
	case PaymentDropped:
		p.Status = "dropped"
	}
}

func (p *Payment) pay(Pay) error {
	if p.Status != "asked" {
		return ErrNotAsked
	}
	domain.Record(p, PaymentReceived{p.ID(), p.Cents})
	return nil
}

// giveBack gives back what was paid, or sees to it that nothing is paid any more.
func (p *Payment) giveBack(ReturnPayment) error {
	switch p.Status {
	case "asked":
		domain.Record(p, PaymentDropped{p.ID()})
	case "received":
		domain.Record(p, PaymentReturned{p.ID(), p.Cents})
	}
	return nil
}

// New is what an engine runs, and its commands.
func New(units *uow.Manager) engine.Context {
	payments := repository.EventSourced[*Payment](units)
	return engine.Context{Commands: command.Must(command.Config{Units: units, Handlers: []command.Handler{
		command.Create(payments, ask),
		command.Update(payments, (*Payment).pay),
		command.Update(payments, (*Payment).giveBack),
	}})}
}
