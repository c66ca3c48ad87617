package repository_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/uow"
)

// removal is the part of the suite about the rule that a removed aggregate that
// is created again goes on from its last version.
func removal[A counter](t *testing.T, k kind[A]) {
	ctx := t.Context()
	removed := func(t *testing.T, id string) A {
		a := k.saved(t, id)
		a.Add(1)
		require.NoError(t, k.repo.Save(ctx, a))
		a.SetLabel("farewell")
		require.NoError(t, k.repo.Remove(ctx, a))
		require.EqualValues(t, 3, a.Version())
		return a
	}

	t.Run("is not found, and its last events are", func(t *testing.T) {
		removed(t, "r1")
		_, err := k.repo.Get(ctx, "r1")
		requireMissing(t, err, "r1")
		_, err = k.repo.GetMany(ctx, "simple", "r1")
		requireMissing(t, err, "r1")
		require.Equal(t, []int64{1, 2, 3}, k.db.versions(t, k.stream+"r1"))
	})

	t.Run("goes on from its last version when looked up and created again", func(t *testing.T) {
		removed(t, "r2")
		again := k.create("r2")
		require.NoError(t, k.db.units.Do(ctx, func(ctx context.Context) error {
			_, err := k.repo.Get(ctx, "r2")
			requireMissing(t, err, "r2")
			again.Add(7)
			require.NoError(t, k.repo.Save(ctx, again))
			again.Add(1)
			require.NoError(t, k.repo.Save(ctx, again))
			got, err := k.repo.Get(ctx, "r2")
			require.NoError(t, err)
			require.Same(t, again, got)
			require.NoError(t, uow.Flush(ctx))
			again.Add(2)
			return k.repo.Save(ctx, again)
		}))
		require.EqualValues(t, 5, again.Version())
		require.Equal(t, []int64{1, 2, 3, 4, 4, 5}, k.db.versions(t, k.stream+"r2"))
		got := k.get(t, "r2")
		require.EqualValues(t, 5, got.Version())
		require.Equal(t, 10, got.Total())
		require.Empty(t, got.Text())
		// And a life later.
		require.NoError(t, k.repo.Remove(ctx, got))
		_, err := k.repo.Get(ctx, "r2")
		requireMissing(t, err, "r2")
		require.NoError(t, k.db.units.Do(ctx, func(ctx context.Context) error {
			_, err := k.repo.Get(ctx, "r2")
			requireMissing(t, err, "r2")
			return k.repo.Save(ctx, k.made("r2"))
		}))
		got = k.get(t, "r2")
		require.EqualValues(t, 7, got.Version())
		require.Equal(t, 1, got.Total())
	})

	t.Run("created again without a look is a conflict that says so", func(t *testing.T) {
		removed(t, "r3")
		a := k.made("r3")
		err := k.repo.Save(ctx, a)
		requireConflict(t, err, "r3", 0)
		require.ErrorContains(t, err, "or it was removed: to create it again, Get it first in the same unit of work")
		require.Equal(t, []int64{1, 2, 3}, k.db.versions(t, k.stream+"r3"))
		_, err = k.repo.Get(ctx, "r3")
		requireMissing(t, err, "r3")
	})

	t.Run("by someone else is a conflict", func(t *testing.T) {
		k.saved(t, "r4")
		stale, stale2 := k.get(t, "r4"), k.get(t, "r4")
		require.NoError(t, k.repo.Remove(ctx, k.get(t, "r4")))
		stale.Add(1)
		requireConflict(t, k.repo.Save(ctx, stale), "r4", 1)
		requireConflict(t, k.repo.Remove(ctx, stale2), "r4", 1)
		require.Equal(t, []int64{1}, k.db.versions(t, k.stream+"r4"))
	})

	t.Run("is gone for the rest of the unit", func(t *testing.T) {
		k.saved(t, "r5")
		require.NoError(t, k.db.units.Do(ctx, func(ctx context.Context) error {
			a, err := k.repo.Get(ctx, "r5")
			require.NoError(t, err)
			require.NoError(t, k.repo.Remove(ctx, a))
			_, err = k.repo.Get(ctx, "r5")
			requireMissing(t, err, "r5")
			require.NoError(t, uow.Flush(ctx))
			_, err = k.repo.Get(ctx, "r5")
			requireMissing(t, err, "r5")
			return nil
		}))
	})

	t.Run("in the unit that created it", func(t *testing.T) {
		require.NoError(t, k.db.units.Do(ctx, func(ctx context.Context) error {
			a := k.made("r6")
			require.NoError(t, k.repo.Save(ctx, a))
			return k.repo.Remove(ctx, a)
		}))
		_, err := k.repo.Get(ctx, "r6")
		requireMissing(t, err, "r6")
		requireConflict(t, k.repo.Save(ctx, k.made("r6")), "r6", 0)
		require.NoError(t, k.db.units.Do(ctx, func(ctx context.Context) error {
			_, err := k.repo.Get(ctx, "r6")
			requireMissing(t, err, "r6")
			return k.repo.Save(ctx, k.made("r6"))
		}))
		require.Equal(t, []int64{1, 2}, k.db.versions(t, k.stream+"r6"))
	})

	t.Run("and what is new can't remove what exists", func(t *testing.T) {
		k.saved(t, "r7")
		requireConflict(t, k.repo.Remove(ctx, k.made("r7")), "r7", 0)
		require.EqualValues(t, 1, k.get(t, "r7").Version())
	})

	t.Run("and restored by its last instance", func(t *testing.T) {
		k.saved(t, "r8")
		require.NoError(t, k.db.units.Do(ctx, func(ctx context.Context) error {
			a, err := k.repo.Get(ctx, "r8")
			require.NoError(t, err)
			require.NoError(t, k.repo.Remove(ctx, a))
			a.Add(1)
			return k.repo.Save(ctx, a)
		}))
		got := k.get(t, "r8")
		require.EqualValues(t, 2, got.Version())
		require.Equal(t, 2, got.Total())
	})

	t.Run("two that create it again at once don't both succeed", func(t *testing.T) {
		removed(t, "r9")
		var wg sync.WaitGroup
		ready := make(chan struct{}, 2)
		goOn := make(chan struct{})
		errs := make(chan error, 2)
		for range 2 {
			wg.Go(func() {
				errs <- k.db.units.Do(ctx, func(ctx context.Context) error {
					if _, err := k.repo.Get(ctx, "r9"); err == nil {
						return errors.New("found")
					}
					ready <- struct{}{}
					<-goOn
					return k.repo.Save(ctx, k.made("r9"))
				})
			})
		}
		<-ready
		<-ready
		close(goOn)
		wg.Wait()
		first, second := <-errs, <-errs
		if first == nil {
			first = second
		} else {
			require.NoError(t, second)
		}
		require.EqualError(t, first, "found", "the loser starts over, and finds the winner's")
		require.Equal(t, []int64{1, 2, 3, 4}, k.db.versions(t, k.stream+"r9"))
	})

	t.Run("a creation that waits for a removal is a conflict", func(t *testing.T) {
		id := "r12-" + uuid.NewString()
		a := k.saved(t, id)
		created := make(chan error, 1)
		require.NoError(t, k.db.units.Do(ctx, func(inner context.Context) error {
			require.NoError(t, k.repo.Remove(inner, a))
			db, err := uow.DB(inner) // sends it, which locks what there was
			require.NoError(t, err)
			var holder int
			if k.db.provider.DB().Dialect().Name() == dialect.PG {
				require.NoError(t, db.NewRaw("SELECT pg_backend_pid()").Scan(inner, &holder))
			}
			go func() { created <- k.repo.Save(ctx, k.made(id)) }()
			if k.db.provider.DB().Dialect().Name() == dialect.PG {
				waittest.Until(t, func() bool {
					waiting, err := k.db.provider.Reader().NewSelect().Table("pg_stat_activity").
						Where("? = ANY (pg_blocking_pids(pid))", holder).Count(ctx)
					return err == nil && waiting == 1 || len(created) == 1 // a history conflicts at once
				})
			}
			return nil
		}))
		requireConflict(t, <-created, id, 0)
		require.Equal(t, []int64{1}, k.db.versions(t, k.stream+id))
	})

	t.Run("an invalid one can be removed", func(t *testing.T) {
		k.saved(t, "r10")
		a := k.get(t, "r10")
		a.SetBroken(true)
		require.NoError(t, k.repo.Remove(ctx, a))
	})

	t.Run("a failed save of one that is created again can be repeated", func(t *testing.T) {
		removed(t, "r11")
		again := k.made("r11")
		again.SetBroken(true)
		save := func() error {
			return k.db.units.Do(ctx, func(ctx context.Context) error {
				_, err := k.repo.Get(ctx, "r11")
				requireMissing(t, err, "r11")
				return k.repo.Save(ctx, again)
			})
		}
		require.ErrorIs(t, save(), errBroken)
		again.SetBroken(false)
		require.EqualValues(t, 0, again.Version())
		require.NoError(t, save())
		require.EqualValues(t, 4, again.Version())
		require.Equal(t, []int64{1, 2, 3, 4}, k.db.versions(t, k.stream+"r11"))
	})
}
