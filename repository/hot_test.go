package repository_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

// N6: many clients that change one aggregate wait for each other, and none fails.
func TestUpdate_N6_HotAggregate(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		units := newUnits(t, uow.Config{Providers: []uow.Provider{db.provider}})
		tallies := repository.New[*Tally](units)
		require.NoError(t, tallies.Save(t.Context(), newTally("hot")))
		const clients, each = 16, 10
		var tries atomic.Int64
		began := time.Now()
		errs := make([]error, clients)
		var wg sync.WaitGroup
		for i := range clients {
			wg.Go(func() {
				for range each {
					errs[i] = errors.Join(errs[i], tallies.Update(t.Context(), "hot", func(a *Tally) error {
						tries.Add(1)
						a.Add(1)
						return nil
					}))
				}
			})
		}
		wg.Wait()
		t.Logf("%d clients × %d: %v, %.1f tries each", clients, each, time.Since(began).Round(time.Millisecond), float64(tries.Load())/(clients*each))
		require.NoError(t, errors.Join(errs...))
		got, err := tallies.Get(t.Context(), "hot")
		require.NoError(t, err)
		require.Equal(t, clients*each, got.Sum)
	})
}

// N6: how often to try again can be said per call.
func TestUpdate_N6_Retries(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		tallies := repository.New[*Tally](newUnits(t, uow.Config{Providers: []uow.Provider{db.provider}}))
		require.NoError(t, tallies.Save(t.Context(), newTally("a")))
		for retries, want := range map[int]int{-1: 1, 2: 3} {
			tries := 0
			err := tallies.Update(t.Context(), "a", func(a *Tally) error {
				tries++
				a.Add(1)
				return tallies.Update(context.Background(), "a", func(a *Tally) error { // somebody else is faster
					a.Add(1)
					return nil
				})
			}, uow.Retries(retries))
			_, conflict := errors.AsType[*uow.ConflictError](err)
			require.True(t, conflict, "%v", err)
			require.Equal(t, want, tries)
		}
	})
}

// N8: that there is nothing to update is an answer. Who has seen it may go on.
func TestUpdate_N8_NotFoundDoomsNothing(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		tallies := repository.New[*Tally](db.units)
		err := db.units.Do(t.Context(), func(ctx context.Context) error {
			err := tallies.Update(ctx, "new", func(*Tally) error {
				t.Error("there is nothing to change")
				return nil
			})
			requireMissing(t, err, "new")
			a := newTally("new")
			a.Add(1)
			return tallies.Save(ctx, a)
		})
		require.NoError(t, err)
		require.Equal(t, []int64{1}, db.versions(t, "shop::tally-new"))

		// F-57: change may have done half of its work, whatever it says.
		half := &repository.NotFoundError{Type: "tally", ID: "other"}
		err = db.units.Do(t.Context(), func(ctx context.Context) error {
			err := tallies.Update(ctx, "new", func(a *Tally) error {
				a.Sum = -1
				return half
			})
			require.Equal(t, half, err)
			return nil
		})
		_, doomed := errors.AsType[*uow.DoomedError](err)
		require.True(t, doomed, "%v", err)
	})
}

// Nothing to change with is a mistake of the program, and so is an empty id: both are named.
func TestUpdate_GivenNothing(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		tallies := repository.New[*Tally](db.units)
		a := newTally("a")
		a.Add(1)
		require.NoError(t, tallies.Save(t.Context(), a))
		require.EqualError(t, tallies.Update(t.Context(), "a", nil),
			"repository: Update was given nil instead of a function: give it one that changes a tally, such as one of its methods")

		_, err := tallies.Get(t.Context(), "")
		for _, err := range []error{err, tallies.Update(t.Context(), "", func(*Tally) error { return nil })} {
			_, missing := errors.AsType[*repository.NotFoundError](err)
			require.True(t, missing, "%v", err)
			require.ErrorContains(t, err, "no tally has an empty id, which is what was asked for: look where the id comes from")
		}
	})
}
