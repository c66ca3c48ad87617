package waybilltest_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/waybilltest"
)

// world is the service: two contexts, wired as the program wires them.
type world struct {
	*waybilltest.Kit
	lib *library
	bil *billing
}

func start(k *waybilltest.Kit) *world {
	w := &world{Kit: k}
	w.lib = newLibrary(k.Units(libraryDomain, func(c *uow.Config) {
		c.External = []outbox.Target{{Broker: "partner", Envelope: outbox.CloudEvents}}
	}))
	w.bil = newBilling(k.Units(billingDomain))
	k.Start(w.lib.context(), w.bil.context())
	return w
}

func TestLoan_IsPaidFor(t *testing.T) {
	t.Parallel()
	w := start(waybilltest.New(t))
	ctx := w.Context(domain.Origin{TenantID: "acme", CorrelationID: "c1"})
	require.NoError(t, w.lib.commands.Do(ctx, PlaceLoan{"l1"}))
	w.Settle()
	require.Equal(t, "active", w.lib.status(t, "l1"))
	w.Published(w.bil.units, ChargePaid{"l1"})

	sent := w.Sent("partner", "library.loan")[0]
	require.Equal(t, "Library.LoanPlaced.v1", sent.Type)
	require.Equal(t, "l1", waybilltest.Decode[LoanPlaced](w.Kit, sent).LoanID)
	require.Empty(t, sent.TenantID)
}

func TestLoan_IsCancelledInTime(t *testing.T) {
	t.Parallel()
	w := start(waybilltest.New(t))
	w.bil.charge = func(context.Context, BillFee) error { return nil } // nobody pays
	require.NoError(t, w.lib.commands.Do(t.Context(), PlaceLoan{"l1"}))
	w.Settle()
	w.Advance(payWithin)
	require.Equal(t, "cancelled", w.lib.status(t, "l1"))
}

// One context alone: what others send is delivered to it.
func TestLoan_OfOneContext(t *testing.T) {
	t.Parallel()
	k := waybilltest.New(t)
	lib := newLibrary(k.Units(libraryDomain))
	k.Start(lib.context())
	require.NoError(t, lib.commands.Do(t.Context(), PlaceLoan{"l1"}))
	k.Deliver(lib.units, "l1", FeePaid{"l1"})
	k.Settle()
	require.Equal(t, "active", lib.status(t, "l1"))
}

func TestLoan_ThatIsUnknown(t *testing.T) {
	t.Parallel()
	w := start(waybilltest.New(t))
	w.Deliver(w.lib.units, "none", FeePaid{"none"})
	w.ExpectParked()
	w.Settle()
	require.Len(t, w.Parked(w.lib.units), 1)
}

func TestLoan_BrokerIsDown(t *testing.T) {
	t.Parallel()
	w := start(waybilltest.New(t))
	w.Broker("default").SetOutage(true)
	require.NoError(t, w.lib.commands.Do(t.Context(), PlaceLoan{"l1"}))
	w.Broker("default").SetOutage(false)
	w.Broker("default").LoseAcks(1)
	w.Settle()
	require.Equal(t, "active", w.lib.status(t, "l1"))
}

func TestLoan_KilledAnywhere(t *testing.T) {
	t.Parallel()
	waybilltest.Crash(t, start, func(ctx context.Context, w *world) error {
		return w.lib.commands.Do(ctx, PlaceLoan{"l1"}, command.Once("loan"))
	}, func(t *testing.T, w *world) {
		require.Equal(t, "active", w.lib.status(t, "l1"))
		charge, err := w.bil.charges.Get(t.Context(), "l1")
		require.NoError(t, err)
		require.EqualValues(t, 1, charge.Version())
	})
}

func TestPaid_HandlerAlone(t *testing.T) {
	t.Parallel()
	lib := newLibrary(waybilltest.New(t).Units(libraryDomain))
	require.NoError(t, lib.commands.Do(t.Context(), PlaceLoan{"l1"}))
	require.NoError(t, waybilltest.Handle(t, lib.stream(), FeePaid{"l1"}))
	require.Equal(t, "active", lib.status(t, "l1"))
}
