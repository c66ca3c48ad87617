package waybilltest_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/waybilltest"
)

// A context with a process: an order is shipped when it is paid, or cancelled.
type (
	Order struct {
		domain.Root
		Status string
		At     time.Time
	}
	PlaceOrder struct {
		OrderID string `json:"order_id"`
	}
	EndOrder struct {
		OrderID string `json:"order_id"`
		Status  string `json:"status"`
	}
	OrderPlaced struct {
		OrderID string `json:"order_id"`
	}
	OrderPaid struct {
		OrderID string `json:"order_id"`
	}
	Checkout struct{ domain.ProcessRoot }
)

func (p *Checkout) Placed(OrderPlaced) error {
	p.SetTimer("pay-by", p.Now().Add(time.Hour))
	return nil
}

func (p *Checkout) Paid(OrderPaid) error {
	p.Send(EndOrder{p.ID(), "shipped"})
	p.End()
	return nil
}

func (p *Checkout) Unpaid() error {
	p.Send(EndOrder{p.ID(), "cancelled"})
	p.End()
	return nil
}

var shopDomain = domain.MustNew("shop",
	domain.Aggregate[*Order]("order", domain.Event[OrderPlaced]()),
	domain.Command[PlaceOrder](domain.KeyedBy("order_id")),
	domain.Command[EndOrder](domain.KeyedBy("order_id")),
	domain.Foreign[OrderPaid]("Till.OrderPaid.v1", domain.From("till::payment")),
	domain.Process[*Checkout]("checkout", domain.CorrelatedBy("order_id"),
		domain.Starts((*Checkout).Placed), domain.Hears((*Checkout).Paid), domain.OnTimer("pay-by", (*Checkout).Unpaid)),
)

type shop struct {
	*waybilltest.Kit
	units    *uow.Manager
	orders   *repository.Repository[*Order]
	commands *command.Handlers
}

func openShop(k *waybilltest.Kit) shop {
	s := shop{Kit: k, units: k.Units(shopDomain)}
	s.orders = repository.New[*Order](s.units)
	s.commands = command.Must(command.Config{Units: s.units, Handlers: []command.Handler{
		command.Create(s.orders, func(c PlaceOrder) (*Order, error) {
			o := &Order{Root: domain.RootWithID(c.OrderID), Status: "placed"}
			o.Raise(OrderPlaced(c))
			return o, nil
		}),
		command.On(func(ctx context.Context, c EndOrder) error {
			return s.orders.Update(ctx, c.OrderID, func(o *Order) error {
				o.Status, o.At = c.Status, domain.Now(ctx)
				return nil
			})
		}),
	}})
	k.Start(engine.Context{Commands: s.commands})
	return s
}

func (s shop) order(t *testing.T) *Order {
	t.Helper()
	o, err := s.orders.Get(t.Context(), "o1")
	require.NoError(t, err)
	return o
}

// Messages that wait for their process to begin are left to do, and its timers go by
// the clock.
func TestProcess_EarlyMessagesAndTimers(t *testing.T) {
	t.Parallel()
	require.Contains(t, failing(t, func(tb testing.TB) {
		s := openShop(waybilltest.New(tb).Patience(2 * time.Second))
		s.Deliver(s.units, "o1", OrderPaid{"o1"})
		s.Settle()
	}), "Till.OrderPaid.v1")

	s := openShop(waybilltest.New(t))
	s.Deliver(s.units, "o1", OrderPaid{"o1"})
	require.NoError(t, s.commands.Do(t.Context(), PlaceOrder{"o1"}))
	s.Settle()
	require.Equal(t, "shipped", s.order(t).Status)

	s = openShop(waybilltest.New(t))
	began := s.Now()
	require.NoError(t, s.commands.Do(t.Context(), PlaceOrder{"o1"}))
	s.Settle()
	s.Advance(2 * time.Hour)
	o := s.order(t)
	require.Equal(t, "cancelled", o.Status)
	require.WithinDuration(t, began.Add(time.Hour), o.At, time.Minute)
}

// Killed anywhere it ends the order once, in time.
func TestProcess_KilledAnywhere(t *testing.T) {
	t.Parallel()
	waybilltest.Crash(t, openShop, func(ctx context.Context, s shop) error {
		err := s.commands.Do(ctx, PlaceOrder{"o1"}, command.Once("place"))
		if err == nil {
			s.Advance(time.Hour)
		}
		return err
	}, func(t *testing.T, s shop) {
		t.Helper()
		o := s.order(t)
		require.Equal(t, "cancelled", o.Status)
		require.EqualValues(t, 2, o.Version())
	})
}
