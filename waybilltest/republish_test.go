package waybilltest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/waybilltest"
)

// What a command raised is published once more, under its own ids. Who has handled it
// doesn't do so again.
func TestRepublish_U14_HandledOnce(t *testing.T) {
	t.Parallel()
	k := waybilltest.New(t)
	w := &world{Kit: k}
	w.lib = newLibrary(k.Units(libraryDomain, func(c *uow.Config) {
		c.History, c.External = true, []outbox.Target{{Broker: "partner"}}
	}))
	w.bil = newBilling(k.Units(billingDomain))
	k.Start(w.lib.context(), w.bil.context())
	require.NoError(t, w.lib.commands.Do(w.Context(domain.Origin{}), PlaceLoan{"l1"}))
	require.NoError(t, w.lib.commands.Do(w.Context(domain.Origin{}), PlaceLoan{"l2"}))
	w.Settle()
	own, paid := w.Sent("default", "library.loan"), len(w.Sent("default", "billing.charge"))
	first := own[0]
	require.Equal(t, "Library.LoanPlaced.v1", first.Type)
	require.NotEmpty(t, first.CausationID)

	done, err := engine.RepublishHistory(t.Context(), w.lib.units, engine.Republish{Causation: first.CausationID, Actor: "ada"})
	require.NoError(t, err)
	require.Equal(t, engine.Republished{Events: 1, Rows: 2}, done)
	w.Settle()
	again := w.Sent("default", "library.loan")
	require.Len(t, again, len(own)+1)
	require.Equal(t, first.ID, again[len(own)].ID)
	require.Len(t, w.Sent("partner", "library.loan"), 3)
	require.Len(t, w.Sent("default", "billing.charge"), paid, "nobody is charged again")
	require.Equal(t, "active", w.lib.status(t, "l1"))
}
