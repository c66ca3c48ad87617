// Package shipping sends what was ordered: it prepares a parcel for each order, and
// dispatches it when the order is released. It is a context of its own, with
// aggregates of its own: what it hears from ordering it declares in its own
// words, and it imports nothing from there.
package shipping

import (
	"context"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// Domain is what shipping keeps, tells and listens to.
var Domain = domain.MustNew("shipping",
	domain.Aggregate[*Shipment]("shipment",
		domain.Event[ShipmentPrepared](),
		domain.Event[ShipmentLabelled](),
		domain.Event[ShipmentDispatched](),
		domain.Event[ShipmentCancelled](),
	),
	domain.Foreign[OrderPlaced]("Ordering.OrderPlaced.v1"),
	domain.Foreign[OrderReleased]("Ordering.OrderReleased.v1"),
	domain.Foreign[OrderCancelled]("Ordering.OrderCancelled.v2"),
	domain.Foreign[NoteAdded]("Ordering.NoteAdded.v1"),
)

// Orders is the subscription to what ordering tells. Every handler runs in a
// unit of work that also notes the message as done, so a message that comes
// twice ships nothing twice.
func Orders(units *uow.Manager) subscription.Stream {
	shipments := repository.New[*Shipment](units)
	return subscription.Stream{
		Name:     "shipping", // consumer group, and key of the inbox
		Category: "ordering::order",
		Units:    units,
		Handlers: []subscription.Handler{
			subscription.On(func(ctx context.Context, e OrderPlaced) error {
				return shipments.Save(ctx, Prepare(e.OrderID))
			}),
			subscription.On(func(ctx context.Context, e NoteAdded) error {
				return shipments.Update(ctx, e.OrderID, func(s *Shipment) error { return s.AddLabel(e.Note) })
			}),
			subscription.On(func(ctx context.Context, e OrderReleased) error {
				return shipments.Update(ctx, e.OrderID, (*Shipment).Dispatch)
			}),
			subscription.On(func(ctx context.Context, e OrderCancelled) error {
				return shipments.Update(ctx, e.OrderID, (*Shipment).Cancel)
			}),
		},
	}
}

// OrderPlaced is what shipping needs to know of an order.
type OrderPlaced struct {
	OrderID string `json:"order_id"`
}

// OrderReleased says that the parcel may go.
type OrderReleased struct {
	OrderID string `json:"order_id"`
}

// OrderCancelled says that there is nothing to send any more.
type OrderCancelled struct {
	OrderID string `json:"order_id"`
}

// NoteAdded is something to mind when packing.
type NoteAdded struct {
	OrderID string `json:"order_id"`
	Note    string `json:"note"`
}
