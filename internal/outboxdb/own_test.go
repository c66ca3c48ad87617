package outboxdb_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/outbox"
)

// sends changes the targets of ordering, after all that waits was published.
func (p *bygone) sends(own string, external ...string) {
	p.T.Helper()
	p.Exec("DELETE FROM outbox_queue")
	require.NoError(p.T, outboxdb.SetTargets(p.T.Context(), p.DB, "ordering", outbox.Targets{Broker: own, External: external}, "mia"))
}

// stores stores an event of order a as a unit does that sends to these, and returns its id.
func (p *bygone) stores(own string, external ...outbox.Target) string {
	p.T.Helper()
	e := p.event("OrderPlaced", "a")
	w := outbox.Writer{Domain: ordering, Internal: own, External: external}
	rows, err := w.Rows([]outbox.Event{e}, outboxdbtest.Partitions)
	require.NoError(p.T, err)
	p.InsertRows(rows...)
	return e.ID
}

// A partner that joins gets what the context has raised before it got another own broker, too,
// once, and made of what the own broker of that time got: what a partner got lacks the tenant,
// even where that partner's broker is the context's own by now.
func TestBackfill_AnotherOwnBroker(t *testing.T) {
	eachBygone(t, func(t *testing.T, p *bygone) {
		want := []string{p.stores("default"), p.stores("default")}
		p.sends("second")
		want = append(want, p.stores("second"))
		p.sends("second", "default")
		want = append(want, p.stores("second", outbox.Target{Broker: "default"}))
		p.sends("default")
		want = append(want, p.stores("default"))
		to := toPartner
		to.Target.Extensions = []string{"tenant_id"}
		found, err := p.CountBackfill(t.Context(), to)
		require.NoError(t, err)
		require.EqualValues(t, 5, found.Events)

		p.joins()
		done, err := p.BackfillAtOnce(t.Context(), to)
		require.NoError(t, err)
		require.EqualValues(t, 5, done.Events)
		require.Equal(t, want, p.got())
		for _, e := range p.entries() {
			if e.TargetBroker == "partner" {
				require.Equal(t, "acme", e.TenantID)
			}
		}
	})
}

// While a broker is joining the context keeps its own one: a back-fill that runs has read which
// one that is.
func TestTargets_AnotherOwnBrokerWhileOneJoins(t *testing.T) {
	eachBygone(t, func(t *testing.T, p *bygone) {
		p.stores("default")
		p.joins()
		p.Exec("DELETE FROM outbox_queue")
		moved := outbox.Targets{Broker: "second", External: []string{"partner"}}
		err := outboxdb.SetTargets(t.Context(), p.DB, "ordering", moved, "mia")
		require.EqualError(t, err, "outbox: context ordering can't have second as its own broker instead of default while partner is joining, which would miss events:"+
			" run `waybill outbox backfill partner` first, which needs no broker, or take it out and add it again afterwards")
		require.EqualValues(t, 1, p.backfill())
		p.Exec("DELETE FROM outbox_queue")
		require.NoError(t, outboxdb.SetTargets(t.Context(), p.DB, "ordering", moved, "mia"))
	})
}
