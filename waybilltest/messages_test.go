package waybilltest_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/waybilltest"
)

func TestDeliver_AsOtherContextsSend(t *testing.T) {
	t.Parallel()
	k := waybilltest.New(t)
	lib := newLibrary(k.Units(libraryDomain))
	require.Contains(t, failing(t, func(tb testing.TB) {
		k := waybilltest.New(tb)
		k.Deliver(k.Units(libraryDomain), "l1", FeePaid{"l1"})
	}), "call Start first")
	k.Start(lib.context())
	for want, event := range map[string]any{
		"FeePaid is a pointer, and declared is waybilltest_test.FeePaid": &FeePaid{"l1"}, "nil stands where a value": nil,
		"ChargePaid is not declared; add domain.Event": ChargePaid{"l1"}, "no stream of context library that was started has a handler for waybilltest_test.LoanPlaced: give": LoanPlaced{},
	} {
		require.Contains(t, failing(t, func(tb testing.TB) {
			tb.Helper()
			k.On(tb).Deliver(lib.units, "l1", event)
		}), want)
	}
	k.On(t)
	require.NoError(t, lib.commands.Do(t.Context(), PlaceLoan{"l1"}))
	var meta domain.Metadata
	paid := lib.paid
	lib.paid = func(ctx context.Context, e FeePaid) error {
		meta, _ = domain.MetadataFrom(ctx)
		return paid(ctx, e)
	}
	k.Deliver(lib.units, "l1", FeePaid{"l1"})
	k.Settle()
	require.Equal(t, "active", lib.status(t, "l1"))
	require.Equal(t, "Billing.ChargePaid.v1", meta.Type)
	require.Equal(t, "billing::charge-l1", meta.Stream)
	require.Equal(t, "billing", meta.Context)
	lib.paid = paid

	// A command, from a context that may send it.
	bil := newBilling(k.Units(billingDomain))
	k.Start(lib.context(), bil.context())
	k.Deliver(bil.units, "", BillFee{"l2"}, BillFee{"l3"})
	k.ExpectParked() // The library has no such loans.
	k.Settle()
	k.Published(bil.units, ChargePaid{"l1"}, ChargePaid{"l2"}, ChargePaid{"l3"}) // The broker had kept the first.
	require.Len(t, k.Parked(lib.units), 2)

	for want, message := range map[string]any{
		"has a handler for waybilltest_test.LoanPlaced": LoanPlaced{},
		"has no key": FeePaid{},
	} {
		require.Contains(t, failing(t, func(tb testing.TB) {
			k := waybilltest.New(tb)
			lib := newLibrary(k.Units(libraryDomain))
			k.Start(lib.context())
			k.Deliver(lib.units, "", message)
		}), want)
	}
}

// Handle needs no engine: each message is handled in a unit of its own.
func TestHandle_WithoutAnEngine(t *testing.T) {
	t.Parallel()
	k := waybilltest.New(t)
	lib := newLibrary(k.Units(libraryDomain))
	for _, id := range []string{"l1", "l2"} {
		require.NoError(t, lib.commands.Do(t.Context(), PlaceLoan{id}))
	}
	require.NoError(t, waybilltest.Handle(t, lib.stream(), FeePaid{"l1"}))
	require.Equal(t, "active", lib.status(t, "l1"))

	// What fails leaves nothing, and what is behind it isn't handled.
	broken := errors.New("broken")
	paid := lib.paid
	lib.paid = func(ctx context.Context, e FeePaid) error { return errors.Join(paid(ctx, e), broken) }
	require.ErrorIs(t, waybilltest.Handle(t, lib.stream(), FeePaid{"l2"}, FeePaid{"l3"}), broken)
	require.Equal(t, "pending", lib.status(t, "l2"))
	var inbox int
	require.NoError(t, lib.units.Providers()[0].Reader().NewRaw("SELECT count(*) FROM inbox WHERE subscription = 'library.charges'").Scan(t.Context(), &inbox))
	require.Equal(t, 1, inbox)

	require.ErrorContains(t, waybilltest.Handle(t, lib.stream(), ChargeFee{"l2"}), "has no handler for waybilltest_test.ChargeFee")
	commands, ok := lib.commands.Stream()
	require.True(t, ok)
	require.NoError(t, waybilltest.Handle(t, commands, CancelLoan{"l2"}))
	require.Equal(t, "cancelled", lib.status(t, "l2"))
}

func TestPublished_SaysWhatIsOther(t *testing.T) {
	t.Parallel()
	k := waybilltest.New(t)
	bil := newBilling(k.Units(billingDomain))
	pay := func(ids ...string) {
		for _, id := range ids {
			charge := &Charge{Root: domain.RootWithID(id)}
			charge.Raise(ChargePaid{id})
			charge.Raise(ChargePaid{"again"})
			require.NoError(t, bil.charges.Save(t.Context(), charge))
		}
	}
	published := func(events ...any) string {
		return failing(t, func(tb testing.TB) {
			tb.Helper()
			k.On(tb).Published(bil.units, events...)
		})
	}
	pay("a", "b")
	k.Published(bil.units, ChargePaid{"b"}, ChargePaid{"a"}, ChargePaid{"again"}, ChargePaid{"again"})
	pay("c")
	require.Contains(t, published(ChargePaid{"again"}, ChargePaid{"c"}), `raised by billing::charge-c before, and wanted behind: waybilltest_test.ChargePaid{LoanID:"c"}`)
	pay("d")
	require.Contains(t, published(ChargePaid{"d"}), `unexpected, of billing::charge-d: waybilltest_test.ChargePaid{LoanID:"again"}`)
	pay("e")
	require.Contains(t, published(ChargePaid{"e"}, ChargePaid{"again"}, ChargePaid{"more"}), `missing: waybilltest_test.ChargePaid{LoanID:"more"}`)
	require.Contains(t, published(LoanPlaced{}), "LoanPlaced is not declared")
	k.Published(bil.units)
}

// JSON of one type is read as another without a word, as long as no field is of another kind.
func TestDecode_OfAnotherType(t *testing.T) {
	t.Parallel()
	k := waybilltest.New(t)
	lib := newLibrary(k.Units(libraryDomain))
	bil := newBilling(k.Units(billingDomain))
	k.Start(lib.context(), bil.context())
	require.NoError(t, lib.commands.Do(t.Context(), PlaceLoan{"l1"}))
	k.Settle()
	paid := k.Sent(bil.units.Broker(), "billing.charge")[0]
	require.Equal(t, "l1", waybilltest.Decode[ChargePaid](k, paid).LoanID)
	require.Equal(t, "l1", waybilltest.Decode[FeePaid](k, paid).LoanID, "as the other context declares it")
	require.Equal(t, "l1", waybilltest.Decode[struct {
		LoanID string `json:"loan_id"`
	}](k, paid).LoanID, "a type of the test's own")
	for want, decode := range map[string]func(tb testing.TB){
		"the message is Billing.ChargePaid.v1, and waybilltest_test.LoanPlaced is declared as Library.LoanPlaced": func(tb testing.TB) { waybilltest.Decode[LoanPlaced](k.On(tb), paid) },
		"the message is Billing.ChargePaid.v1, and waybilltest_test.PlaceLoan is declared as Library.PlaceLoan":   func(tb testing.TB) { waybilltest.Decode[PlaceLoan](k.On(tb), paid) },
	} {
		require.Contains(t, failing(t, decode), want)
	}
	k.On(t)
}
