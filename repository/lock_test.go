package repository_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

// Who comes second waits for the aggregate, and does nothing in vain.
// Conformance: N6.
func TestGetForUpdate_Waits(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		t.Run("documents", func(t *testing.T) { waiting(t, kind[*Tally]{db, repository.New[*Tally](db.units), newTally, ""}) })
		t.Run("mapped", func(t *testing.T) {
			waiting(t, kind[*Basket]{db, repository.Mapped(db.units, basketMapping), newBasket, ""})
		})
		t.Run("event-sourced", func(t *testing.T) {
			waiting(t, kind[*Ledger]{db, repository.EventSourced[*Ledger](db.units), newLedger, ""})
		})
	})
}

func waiting[A counter](t *testing.T, k kind[A]) {
	ctx := t.Context()
	k.saved(t, "hot")
	const clients, each = 6, 4
	var tries atomic.Int64
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for range each {
				err := k.db.units.Do(ctx, func(ctx context.Context) error {
					tries.Add(1)
					a, err := k.repo.GetForUpdate(ctx, "hot")
					if err != nil {
						return err
					}
					a.Add(1)
					return k.repo.Save(ctx, a)
				}, uow.Retries(-1))
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, 1+clients*each, k.get(t, "hot").Total())
	require.EqualValues(t, clients*each, tries.Load())

	_, err := k.repo.GetForUpdate(ctx, "hot")
	require.ErrorIs(t, err, uow.ErrNone)
	require.NoError(t, k.db.units.Do(ctx, func(ctx context.Context) error {
		_, err := k.repo.GetForUpdate(ctx, "nobody")
		requireMissing(t, err, "nobody")
		_, err = k.repo.GetForUpdate(ctx, "no\x00body")
		requireMissing(t, err, "no\x00body")
		made := k.made("made")
		require.NoError(t, k.repo.Save(ctx, made))
		got, err := k.repo.GetForUpdate(ctx, "made")
		require.NoError(t, err)
		require.Same(t, any(made), any(got))
		hot, err := k.repo.GetForUpdate(ctx, "hot")
		require.NoError(t, err)
		require.NoError(t, k.repo.Remove(ctx, hot))
		_, err = k.repo.GetForUpdate(ctx, "hot")
		requireMissing(t, err, "hot")
		return nil
	}))
	// One that was removed is created again, as with Get.
	require.NoError(t, k.db.units.Do(ctx, func(ctx context.Context) error {
		_, err := k.repo.GetForUpdate(ctx, "hot")
		requireMissing(t, err, "hot")
		return k.repo.Save(ctx, k.made("hot"))
	}))

	// The unit had decided by a version that is no longer the last: it runs again.
	runs := 0
	require.NoError(t, k.db.units.Do(ctx, func(ctx context.Context) error {
		a, err := k.repo.Get(ctx, "made")
		require.NoError(t, err)
		if runs++; runs == 1 {
			require.NoError(t, k.repo.Update(context.WithoutCancel(t.Context()), "made", func(a A) error {
				a.Add(1)
				return nil
			}))
		}
		locked, err := k.repo.GetForUpdate(ctx, "made")
		if err != nil {
			requireConflict(t, err, "made", 1)
			return err
		}
		require.Same(t, any(a), any(locked))
		require.Equal(t, 2, a.Total())
		return nil
	}))
	require.Equal(t, 2, runs)
}

// The retries of a call end when its time is over, and not in the middle of a run.
func TestUpdate_N6_Within(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		tallies := repository.New[*Tally](db.units)
		require.NoError(t, tallies.Save(t.Context(), newTally("a")))
		const most = 100_000 // tries, which take far longer
		all, tries := 0, 0
		for within := 100 * time.Millisecond; tries < 2; within *= 2 { // on a busy machine the first run may take all of it
			tries = 0
			err := tallies.Update(t.Context(), "a", func(a *Tally) error {
				tries++
				all++
				a.Add(1)
				return tallies.Update(context.Background(), "a", func(a *Tally) error { // somebody else is faster
					a.Add(1)
					return nil
				})
			}, uow.Within(within), uow.Retries(most))
			requireConflict(t, err, "a", int64(all))
			require.Less(t, tries, most, "it was the time")
		}
	})
}
