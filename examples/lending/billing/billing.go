// Package billing charges fees. It is a context of its own: what it hears of the
// library it declares in its own words. Its aggregate is event-sourced.
package billing

import (
	"context"
	"errors"

	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// Charge is what a member is to pay for a loan.
type Charge struct {
	domain.Root
	Cents  int64
	Status string
}

// PayFee is a command.
type PayFee struct{ LoanID string }

// Events.
type (
	FeeRequested struct {
		LoanID, MemberID string
		FeeCents         int64
	}
	FeePaid     struct{ LoanID string }
	FeeDeclined struct{ LoanID, Reason string }
	FeeVoided   struct{ LoanID string }
	FeeRefunded struct{ LoanID string }
)

// The library's events, in billing's words.
type (
	Lent             FeeRequested
	LendingCancelled struct{ LoanID string }
)

// ErrNotOpen is a payment that nobody waits for.
var ErrNotOpen = errors.New("there is nothing to pay")

// Domain is what billing keeps, does and hears.
var Domain = domain.MustNew("billing",
	domain.Aggregate[*Charge]("charge",
		domain.Event[FeeRequested](), domain.Event[FeeVoided](), domain.Event[FeeRefunded](),
		domain.Event[FeePaid](domain.Published()), domain.Event[FeeDeclined](domain.Published()),
	),
	domain.Command[PayFee](domain.KeyedBy("LoanID")),
	domain.Foreign[Lent]("Library.LoanPlaced.v2", domain.From("library::loan")),
	domain.Foreign[LendingCancelled]("Library.LoanCancelled.v1", domain.From("library::loan")),
)

// Request asks a member for a fee.
func Request(l Lent) *Charge {
	c := &Charge{Root: domain.RootWithID(l.LoanID)}
	domain.Record(c, FeeRequested(l))
	if l.MemberID == "broke" {
		domain.Record(c, FeeDeclined{l.LoanID, "no credit"})
	}
	return c
}

// Apply is how the events make a charge.
func (c *Charge) Apply(event any) {
	switch e := event.(type) {
	case FeeRequested:
		c.Cents, c.Status = e.FeeCents, "requested"
	case FeePaid:
		c.Status = "paid"
	case FeeDeclined:
		c.Status = "declined"
	case FeeVoided:
		c.Status = "voided"
	case FeeRefunded:
		c.Status = "refunded"
	}
}

// Pay pays it.
func (c *Charge) Pay(PayFee) error {
	if c.Status != "requested" {
		return ErrNotOpen
	}
	domain.Record(c, FeePaid{c.ID()})
	return nil
}

// Cancel lets it be, or gives back what was paid.
func (c *Charge) Cancel() error {
	switch c.Status {
	case "requested":
		domain.Record(c, FeeVoided{c.ID()})
	case "paid":
		domain.Record(c, FeeRefunded{c.ID()})
	}
	return nil
}

// App is billing at work.
type App struct {
	Charges  *repository.Repository[*Charge]
	Commands *command.Handlers
}

// New wires it.
func New(units *uow.Manager) *App {
	charges := repository.EventSourced[*Charge](units)
	return &App{charges, command.Must(command.Config{Units: units, Handlers: []command.Handler{command.Update(charges, (*Charge).Pay)}})}
}

// Context is what an engine runs.
func (a *App) Context() engine.Context {
	return engine.Context{Commands: a.Commands, Subscriptions: []subscription.Stream{{
		Name: "billing.lendings", Category: "library::loan",
		Handlers: []subscription.Handler{
			subscription.On(func(ctx context.Context, e Lent) error { return a.Charges.Save(ctx, Request(e)) }),
			subscription.On(func(ctx context.Context, e LendingCancelled) error {
				return a.Charges.Update(ctx, e.LoanID, (*Charge).Cancel)
			}),
		},
	}}}
}
