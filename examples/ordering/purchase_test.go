package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/examples/ordering/billing"
	"github.com/waybill-go/waybill/examples/ordering/ordering"
	"github.com/waybill-go/waybill/examples/ordering/shipping"
	"github.com/waybill-go/waybill/internal/waittest"
	processes "github.com/waybill-go/waybill/process"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/waybilltest"
)

// contextsAtWork are the three contexts, each on a database of its own.
type contextsAtWork struct {
	*waybilltest.Kit
	units     *uow.Manager // of ordering
	orders    *repository.Repository[*ordering.Order]
	shipments *repository.Repository[*shipping.Shipment]
	charges   *repository.Repository[*billing.Charge]
}

func startContexts(k *waybilltest.Kit) *contextsAtWork {
	orders, shipments, charges := k.Units(ordering.Selling(time.Hour)), k.Units(shipping.Domain), k.Units(billing.Domain)
	k.Start(selling(orders), parcels(shipments), billing.Context(charges))
	return &contextsAtWork{
		k, orders, repository.New[*ordering.Order](orders), repository.New[*shipping.Shipment](shipments), repository.New[*billing.Charge](charges),
	}
}

// place places the order of a customer, under the customer's name.
func (c *contextsAtWork) place(ctx context.Context, customer string) error {
	o, err := ordering.Import(customer, time.Date(1997, 1, 1, 0, 0, 0, 0, time.UTC), customer, ordering.Line{Article: "tea", Quantity: 2, Amount: 901})
	if err != nil {
		return err
	}
	return c.orders.Save(ctx, o)
}

// state is what all contexts have of an order.
func (c *contextsAtWork) state(t *testing.T, id string) string {
	t.Helper()
	o, err := c.orders.Get(t.Context(), id)
	require.NoError(t, err)
	s, err := c.shipments.Get(t.Context(), id)
	require.NoError(t, err)
	charge, err := c.charges.Get(t.Context(), id)
	require.NoError(t, err)
	_, purchase, err := processes.Get[*ordering.Purchase](t.Context(), c.units, id)
	require.NoError(t, err)
	return fmt.Sprintf("order %s, shipment %s, charge %s, purchase %s with %d timers", o.Status, s.Status, charge.Status, purchase.Status, len(purchase.Timers))
}

const (
	soldState = "order released, shipment dispatched, charge paid, purchase ended with 0 timers"
	overState = "order cancelled, shipment cancelled, charge %s, purchase ended with 0 timers"
)

func TestPurchase_EveryEnd(t *testing.T) {
	t.Parallel()
	c := startContexts(waybilltest.New(t))
	for _, customer := range []string{"customer-1", "late-1", "never-1", "broke-1", "never-2"} {
		require.NoError(t, c.place(t.Context(), customer))
	}
	c.Settle()
	const waits = "order placed, shipment prepared, charge asked, purchase running with 1 timers"
	require.Equal(t, soldState, c.state(t, "customer-1"))
	require.Equal(t, waits, c.state(t, "late-1"))
	require.Equal(t, waits, c.state(t, "never-1"))
	require.Equal(t, fmt.Sprintf(overState, "declined"), c.state(t, "broke-1"))

	cancel := func(id string) error {
		return c.orders.Update(t.Context(), id, func(o *ordering.Order) error { return o.Cancel("changed my mind") })
	}
	require.ErrorIs(t, cancel("customer-1"), ordering.ErrReleased)
	require.NoError(t, cancel("never-2"))
	c.Settle()
	require.Equal(t, fmt.Sprintf(overState, "withdrawn"), c.state(t, "never-2"))

	c.Advance(time.Hour)
	require.Equal(t, fmt.Sprintf(overState, "withdrawn"), c.state(t, "never-1"))
	c.Advance(time.Second)
	require.Equal(t, fmt.Sprintf(overState, "refunded"), c.state(t, "late-1"))
	late, err := c.charges.Get(t.Context(), "late-1")
	require.NoError(t, err)
	require.Equal(t, []int64{901, 901}, []int64{late.Paid, late.Refunded})
}

// The customer cancels while the order is charged and released: one of both is first,
// and the money goes the same way.
func TestPurchase_CancelledAgainstPaid(t *testing.T) {
	t.Parallel()
	c := startContexts(waybilltest.New(t))
	until := []func(id string) bool{
		func(string) bool { return true },
		func(id string) bool { _, err := c.charges.Get(t.Context(), id); return err == nil },
		func(id string) bool {
			p, _, err := processes.Get[*ordering.Purchase](t.Context(), c.units, id)
			return err == nil && p.Status != ordering.Charging
		},
		func(id string) bool {
			o, err := c.orders.Get(t.Context(), id)
			return err == nil && o.Status == ordering.Released
		},
	}
	for i := range 3 * len(until) {
		id := fmt.Sprintf("customer-%d", i)
		require.NoError(t, c.place(t.Context(), id))
		waittest.Until(t, func() bool { return until[i%len(until)](id) })
		err := c.orders.Update(t.Context(), id, func(o *ordering.Order) error { return o.Cancel("changed my mind") })
		c.Settle()
		if err != nil {
			require.ErrorIs(t, err, ordering.ErrReleased)
			require.Equal(t, soldState, c.state(t, id))
		} else {
			require.Equal(t, fmt.Sprintf(overState, "refunded"), c.state(t, id))
		}
	}
}
