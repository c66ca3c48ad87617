package shipping_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/examples/ordering/shipping"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/waybilltest"
)

// service is shipping as it runs, with ordering played by the test.
type service struct {
	*waybilltest.Kit
	units *uow.Manager
}

func start(k *waybilltest.Kit) service {
	s := service{k, k.Units(shipping.Domain)}
	k.Start(engine.Context{Units: s.units, Subscriptions: []subscription.Stream{shipping.Orders(s.units)}})
	return s
}

func TestShipping_ShipsWhatWasOrdered(t *testing.T) {
	s := start(waybilltest.New(t))
	s.Deliver(s.units, "o-1", shipping.OrderPlaced{OrderID: "o-1"}, shipping.NoteAdded{OrderID: "o-1", Note: "a gift"})
	s.Deliver(s.units, "o-2", shipping.OrderPlaced{OrderID: "o-2"}, shipping.OrderCancelled{OrderID: "o-2"})
	s.Deliver(s.units, "o-3", shipping.OrderPlaced{OrderID: "o-3"}, shipping.OrderReleased{OrderID: "o-3"})
	s.Settle()
	s.Published(s.units,
		shipping.ShipmentPrepared{ShipmentID: "o-1"}, shipping.ShipmentLabelled{ShipmentID: "o-1", Text: "a gift"},
		shipping.ShipmentPrepared{ShipmentID: "o-2"}, shipping.ShipmentCancelled{ShipmentID: "o-2"},
		shipping.ShipmentPrepared{ShipmentID: "o-3"}, shipping.ShipmentDispatched{ShipmentID: "o-3"})
}

func TestShipping_ANoteToNoOrderIsParked(t *testing.T) {
	s := start(waybilltest.New(t))
	s.ExpectParked()
	s.Deliver(s.units, "o-1", shipping.NoteAdded{OrderID: "o-1", Note: "a gift"})
	s.Settle()
	require.Len(t, s.Parked(s.units), 1)
}

func TestShipping_KilledAnywhere(t *testing.T) {
	waybilltest.Crash(t, start, func(_ context.Context, s service) error {
		s.Deliver(s.units, "o-1", shipping.OrderPlaced{OrderID: "o-1"})
		return nil
	}, func(t *testing.T, s service) {
		t.Helper()
		shipment, err := repository.New[*shipping.Shipment](s.units).Get(t.Context(), "o-1")
		require.NoError(t, err)
		require.EqualValues(t, 1, shipment.Version())
		s.Published(s.units, shipping.ShipmentPrepared{ShipmentID: "o-1"})
	})
}
