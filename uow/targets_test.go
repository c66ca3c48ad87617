package uow_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

// A unit of a process whose brokers are not the database's stores nothing, with
// its own SQL before it or without. While the database has none, it is looked for
// again at each unit.
func TestTargetsMismatch(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		for _, before := range []func(context.Context) error{
			func(context.Context) error { return nil },
			func(ctx context.Context) error { _, err := uow.DB(ctx); return err },
		} {
			w := newWorld(t, open)
			deposit := func(id string) error {
				a := newAccount(id)
				a.Deposit(1)
				return w.units.Do(t.Context(), func(ctx context.Context) error {
					return errors.Join(before(ctx), w.save(ctx, a))
				})
			}
			require.NoError(t, deposit("before any engine"))
			other := outbox.Targets{Broker: "default", External: []string{"second", "partner"}}
			require.NoError(t, outbox.InitTargets(t.Context(), w.db.DB(), "bank", other))
			err := deposit("refused")
			mismatch, ok := errors.AsType[*outbox.TargetsError](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, "bank", mismatch.Context)
			require.True(t, mismatch.Have.Equal(other))
			require.Equal(t, outbox.Targets{Broker: "default", External: []string{"partner"}}, mismatch.Want)
			require.Equal(t, []string{"account-before any engine@1"}, w.things(t))
			require.Len(t, rows(t, w.db), 2)

			require.NoError(t, outbox.SetTargets(t.Context(), w.db.DB(), "bank", w.units.Targets()))
			require.NoError(t, deposit("accepted"))
			require.NoError(t, outbox.SetTargets(t.Context(), w.db.DB(), "bank", other))
			require.NoError(t, deposit("not looked for any more"))
		}
	})
}

// What is right is accepted.
func TestPartitionsMatch(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open, func(c *uow.Config) { c.Partitions = 64 })
		a := newAccount("a")
		a.Deposit(1)
		w.saved(t, a)
		require.Len(t, rows(t, w.db), 2)
	})
}
