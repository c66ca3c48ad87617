package uow_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

// Enrich completes the origin of all that a unit raises, once, however often its function
// runs and whoever joins it; the origin of the caller's own context stays as it was.
func TestEnrich_OnceForAUnit(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		var calls atomic.Int64
		w := newWorld(t, open, func(c *uow.Config) {
			c.Enrich = func(_ context.Context, o domain.Origin) domain.Origin {
				calls.Add(1)
				o.TenantID = "acme"
				o.Extensions["build"] = "7"
				return o
			}
		})
		given := domain.Origin{CorrelationID: "c1", Extensions: map[string]string{"channel": "web"}}
		ctx := domain.WithOrigin(t.Context(), given)
		w.saved(t, newAccount("seen"))
		calls.Store(0)
		first, second, own := newAccount("a"), newAccount("b"), newAccount("c")
		runs := 0
		require.NoError(t, w.units.Do(ctx, func(ctx context.Context) error {
			runs++
			loaded, err := get(ctx, w.store, newAccount("seen"))
			if err != nil {
				return err
			}
			if runs == 1 { // somebody else is faster
				require.NoError(t, w.deposit(t.Context(), "seen", 1, none))
			}
			loaded.Annotate("again")
			if err := w.save(ctx, loaded); err != nil {
				return err
			}
			if runs == 1 {
				return uow.Flush(ctx)
			}
			first.Deposit(1)
			require.Equal(t, "acme", domain.OriginFrom(ctx).TenantID)
			if err := w.save(ctx, first); err != nil {
				return err
			}
			own.Deposit(3)
			if err := w.save(domain.WithOrigin(ctx, domain.Origin{CorrelationID: "c2"}), own); err != nil {
				return err
			}
			return w.units.Do(ctx, func(ctx context.Context) error {
				second.Deposit(2)
				return w.save(ctx, second)
			})
		}))
		require.Equal(t, 2, runs)
		require.EqualValues(t, 2, calls.Load(), "one of each unit")
		require.Equal(t, given, domain.OriginFrom(ctx))

		enriched := domain.Origin{CorrelationID: "c1", TenantID: "acme", Extensions: map[string]string{"channel": "web", "build": "7"}}
		require.Equal(t, map[string]domain.Origin{"seen": enriched, "a": enriched, "b": enriched, "c": {CorrelationID: "c2"}}, w.origins(t))
	})
}

// origins are those of stored events, by aggregate.
func (w *world) origins(t *testing.T) map[string]domain.Origin {
	t.Helper()
	all := map[string]domain.Origin{}
	for _, r := range rows(t, w.db) {
		if r.TargetBroker != "default" {
			continue
		}
		m, _, err := outbox.ParseEnvelope(r.Payload)
		require.NoError(t, err)
		m.Origin.Traceparent = ""
		all[m.AggregateID] = m.Origin
	}
	return all
}

// What returns no extensions stores none, and without Enrich nothing is changed.
func TestEnrich_LeavesWhatItDoesNotKnow(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open, func(c *uow.Config) {
			c.Enrich = func(_ context.Context, o domain.Origin) domain.Origin { return o }
		})
		a := newAccount("a")
		a.Deposit(1)
		require.NoError(t, w.units.Do(domain.WithOrigin(t.Context(), domain.Origin{CorrelationID: "c1"}), func(ctx context.Context) error {
			require.Nil(t, domain.OriginFrom(ctx).Extensions)
			return w.save(ctx, a)
		}))
		require.Equal(t, map[string]domain.Origin{"a": {CorrelationID: "c1"}}, w.origins(t))
	})
}
