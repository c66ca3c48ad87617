// Package billing charges for orders, and gives back what was paid for those that are
// cancelled. It is a context of its own: others ask it by commands, and hear what
// became of that by its events.
package billing

import (
	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

// Domain is what billing keeps, does and tells.
var Domain = domain.MustNew("billing",
	domain.Aggregate[*Charge]("charge",
		domain.Event[ChargeAsked](),
		domain.Event[ChargePaid](domain.Published()),
		domain.Event[ChargeDeclined](domain.Published()),
		domain.Event[ChargeWithdrawn](domain.Published()),
		domain.Event[ChargeRefunded](domain.Published()),
	),
	domain.Command[ChargeOrder](domain.KeyedBy("order_id"), domain.FromOthers()),
	domain.Command[RefundOrder](domain.KeyedBy("order_id"), domain.FromOthers()),
	domain.Command[ReceiveMoney](domain.KeyedBy("order_id")),
)

// Context is what an engine runs of billing.
func Context(units *uow.Manager) engine.Context {
	charges := repository.New[*Charge](units)
	return engine.Context{Commands: command.Must(command.Config{Units: units, Handlers: []command.Handler{
		command.Create(charges, Ask),
		command.Update(charges, (*Charge).Refund),
		command.Update(charges, (*Charge).Receive),
	}})}
}
