package outboxdb_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/outbox"
)

// starts is a program of the context that starts its engine, and publishes some events.
func (p *bygone) starts(renamed map[string]string, events ...string) {
	p.T.Helper()
	require.NoError(p.T, outboxdb.WriteRenamed(p.T.Context(), p.DB, "ordering", renamed))
	require.NoError(p.T, outboxdb.WritePublished(p.T.Context(), p.DB, "ordering", events))
}

// asWritten is a back-fill by who knows no domain.
func asWritten() outbox.Backfill {
	b := toPartner
	b.Published = nil
	return b
}

// In a rolling deployment a program of before may start last, and not publish what others do: the
// partner would miss that for good. So nothing is copied until one of the others has started.
func TestBackfill_ProgramsThatDifferInWhatTheyPublish(t *testing.T) {
	eachBygone(t, func(t *testing.T, p *bygone) {
		p.starts(nil, "OrderPlaced", "OrderForgotten") // before partner joins: it doesn't count
		p.joins()
		p.starts(nil, "OrderPlaced", "OrderCancelled")
		p.InsertRows(append(p.rows(p.event("OrderPlaced", "a")), p.rows(p.event("OrderCancelled", "a"))...)...)
		p.starts(nil, "OrderPlaced")

		differ := func(b outbox.Backfill, who string) {
			t.Helper()
			_, err := p.BackfillAtOnce(t.Context(), b)
			require.ErrorContains(t, err, "have started since partner joins publish different events, and it would miss some: OrderCancelled, which "+who+" doesn't publish")
			_, err = p.CountBackfill(t.Context(), b)
			require.ErrorContains(t, err, "OrderCancelled")
		}
		differ(asWritten(), "the one that started last")
		own := toPartner
		own.Published = []string{"OrderPlaced"}
		differ(own, "the one that asks")
		require.Empty(t, p.got())
		require.Equal(t, []string{"partner"}, p.joining())

		p.starts(nil, "OrderPlaced", "OrderCancelled")
		done, err := p.BackfillAtOnce(t.Context(), asWritten())
		require.NoError(t, err)
		require.EqualValues(t, 2, done.Events)
		require.Zero(t, p.Count("SELECT count(*) FROM outbox_settings WHERE name LIKE 'backfill%'"))
	})
}

// What a partner doesn't want, and what has another name by now, is nothing that it would miss.
func TestBackfill_ProgramsThatDifferInWhatNobodyMisses(t *testing.T) {
	eachBygone(t, func(t *testing.T, p *bygone) {
		p.joins()
		p.starts(nil, "OrderSent", "OrderCancelled")
		p.starts(map[string]string{"Ordering.OrderSent": "OrderPlaced"}, "OrderPlaced")
		p.happen(1, 1)
		_, err := p.CountBackfill(t.Context(), asWritten())
		require.ErrorContains(t, err, "some: OrderCancelled, which")
		b := asWritten()
		b.Target.Events = []string{"OrderPlaced"}
		done, err := p.BackfillAtOnce(t.Context(), b)
		require.NoError(t, err)
		require.EqualValues(t, 1, done.Events)
	})
}

// A program that starts while a back-fill runs, and publishes more, has the partner get that.
func TestBackfill_AProgramThatPublishesMoreStartsMeanwhile(t *testing.T) {
	eachBygone(t, func(t *testing.T, p *bygone) {
		p.joins()
		p.starts(nil, "OrderPlaced")
		p.happen(501, 3)
		b := asWritten()
		var once sync.Once
		b.Progress = func(outbox.Backfilled, string) {
			once.Do(func() {
				p.starts(nil, "OrderPlaced", "OrderCancelled")
				p.InsertRows(p.rows(p.event("OrderCancelled", "o1"))...)
			})
		}
		done, err := p.BackfillAtOnce(t.Context(), b)
		require.NoError(t, err)
		require.EqualValues(t, 502, done.Events)
	})
}
