package repository_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

// kind is one of the three ways, for the suite.
type kind[A counter] struct {
	db     testDB
	repo   *repository.Repository[A]
	create func(id string) A
	stream string // of the aggregates, without the id
}

// Conformance: A2, N11, [A2.
func TestDocuments(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		suite(t, kind[*Tally]{db, repository.New[*Tally](db.units), newTally, "shop::tally-"})
	})
}

// Conformance: N11.
func TestMapped(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		suite(t, kind[*Basket]{db, repository.Mapped(db.units, basketMapping), newBasket, "shop::basket-"})
	})
}

// Conformance: N11, S2-40.
func TestEventSourced(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		suite(t, kind[*Ledger]{db, repository.EventSourced[*Ledger](db.units), newLedger, "shop::ledger-"})
	})
}

// made is a new aggregate with one event.
func (k kind[A]) made(id string) A {
	a := k.create(id)
	a.Add(1)
	return a
}

// saved is one at version 1.
func (k kind[A]) saved(t *testing.T, id string) A {
	t.Helper()
	a := k.made(id)
	require.NoError(t, k.repo.Save(t.Context(), a))
	return a
}

func (k kind[A]) get(t *testing.T, id string) A {
	t.Helper()
	a, err := k.repo.Get(t.Context(), id)
	require.NoError(t, err)
	return a
}

func requireMissing(t *testing.T, err error, id string) {
	t.Helper()
	missing, ok := errors.AsType[*repository.NotFoundError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, id, missing.ID)
	require.EqualError(t, err, "repository: no "+missing.Type+" has id "+id)
}

func requireConflict(t *testing.T, err error, id string, expected int64) {
	t.Helper()
	conflict, ok := errors.AsType[*uow.ConflictError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, id, conflict.ID)
	require.Equal(t, expected, conflict.Expected)
}

func suite[A counter](t *testing.T, k kind[A]) {
	ctx := t.Context()

	t.Run("saves and loads", func(t *testing.T) { // S3-01
		a := k.made("simple")
		a.SetLabel("one")
		require.NoError(t, k.repo.Save(ctx, a))
		require.EqualValues(t, 1, a.Version())
		got := k.get(t, "simple")
		require.NotSame(t, a, got)
		require.Equal(t, "simple", got.ID())
		require.EqualValues(t, 1, got.Version())
		require.Equal(t, 1, got.Total())
		require.Equal(t, "one", got.Text())

		got.Add(41)
		require.NoError(t, k.repo.Save(ctx, got))
		require.EqualValues(t, 2, got.Version())
		require.Equal(t, 42, k.get(t, "simple").Total())
		require.Equal(t, []int64{1, 1, 2}, k.db.versions(t, k.stream+"simple"))
	})

	t.Run("what a failed unit saved is nowhere, and can be saved again", func(t *testing.T) { // A2
		a := k.made("failed")
		err := k.db.units.Do(ctx, func(ctx context.Context) error {
			require.NoError(t, k.repo.Save(ctx, a))
			require.NoError(t, uow.Flush(ctx))
			return errBroken
		})
		require.ErrorIs(t, err, errBroken)
		_, err = k.repo.Get(ctx, "failed")
		requireMissing(t, err, "failed")
		require.Empty(t, k.db.outbox(t, k.stream+"failed"))

		require.NoError(t, k.repo.Save(ctx, a))
		require.EqualValues(t, 1, a.Version())
		require.Len(t, k.db.outbox(t, k.stream+"failed"), 1)
	})

	t.Run("a stale writer changes nothing", func(t *testing.T) { // A11
		k.saved(t, "stale")
		first, second := k.get(t, "stale"), k.get(t, "stale")
		first.Add(10)
		second.Add(100)
		second.SetLabel("longer than the first")
		require.NoError(t, k.repo.Save(ctx, first))
		requireConflict(t, k.repo.Save(ctx, second), "stale", 1)
		require.EqualValues(t, 1, second.Version())
		got := k.get(t, "stale")
		require.Equal(t, 11, got.Total())
		require.Empty(t, got.Text())
		require.Equal(t, []int64{1, 2}, k.db.versions(t, k.stream+"stale"))
	})

	t.Run("an identity is created once", func(t *testing.T) {
		k.saved(t, "once")
		again := k.made("once")
		again.SetLabel("more than one event")
		err := k.repo.Save(ctx, again)
		requireConflict(t, err, "once", 0)
		require.ErrorContains(t, err, "exists already")
		require.Len(t, k.db.outbox(t, k.stream+"once"), 1)
		require.Empty(t, k.get(t, "once").Text())
	})

	t.Run("Update starts over until it is nobody's loser", func(t *testing.T) {
		k.saved(t, "busy")
		var wg sync.WaitGroup
		const writers, rounds = 8, 10
		for range writers {
			wg.Go(func() {
				for range rounds {
					if err := k.repo.Update(ctx, "busy", func(a A) error {
						a.Add(1)
						return nil
					}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		got := k.get(t, "busy")
		require.Equal(t, 1+writers*rounds, got.Total())
		require.EqualValues(t, 1+writers*rounds, got.Version())
		versions := k.db.versions(t, k.stream+"busy")
		require.Len(t, versions, 1+writers*rounds)
		require.IsIncreasing(t, versions)
	})

	t.Run("Update passes errors on and saves nothing", func(t *testing.T) {
		k.saved(t, "kept")
		err := k.repo.Update(ctx, "kept", func(a A) error {
			a.Add(1)
			return errBroken
		})
		require.ErrorIs(t, err, errBroken)
		require.EqualValues(t, 1, k.get(t, "kept").Version())
		err = k.repo.Update(ctx, "nobody", func(A) error { return nil })
		requireMissing(t, err, "nobody")
	})

	t.Run("what changes nothing writes nothing", func(t *testing.T) { // N11
		version := func(id string, want int64) {
			t.Helper()
			require.Equal(t, want, k.get(t, id).Version())
		}
		k.saved(t, "still")
		for range 2 {
			require.NoError(t, k.repo.Update(ctx, "still", func(A) error { return nil }))
		}
		version("still", 1)
		held := k.get(t, "still")
		require.NoError(t, k.repo.Save(ctx, held), "one from outside the unit")
		held.Add(1)
		require.NoError(t, k.repo.Save(ctx, held))
		require.NoError(t, k.repo.Save(ctx, held), "one that was just saved")
		version("still", 2)
		require.EqualValues(t, 2, held.Version())

		// A change that is taken back before it is committed, but was sent.
		require.NoError(t, k.db.units.Do(ctx, func(ctx context.Context) error {
			a, err := k.repo.Get(ctx, "still")
			require.NoError(t, err)
			a.SetLabel("x")
			require.NoError(t, k.repo.Save(ctx, a))
			require.NoError(t, uow.Flush(ctx))
			a.SetLabel("")
			return k.repo.Save(ctx, a)
		}))
		require.Empty(t, k.get(t, "still").Text())
		version("still", 4)

		// A save that failed has changed nothing: the next one does.
		lost := k.get(t, "still")
		lost.SetLabel("kept")
		require.ErrorIs(t, k.db.units.Do(ctx, func(ctx context.Context) error {
			return errors.Join(k.repo.Save(ctx, lost), errBroken)
		}), errBroken)
		require.NoError(t, k.repo.Save(ctx, lost))
		require.Equal(t, "kept", k.get(t, "still").Text())

		// It raised nothing when it was looked at; what it raises later must not be lost.
		err := k.db.units.Do(ctx, func(ctx context.Context) error {
			a := k.get(t, "still")
			require.NoError(t, k.repo.Save(ctx, a))
			a.Add(1)
			return nil
		})
		_, unsaved := errors.AsType[*uow.UnsavedError](err)
		require.True(t, unsaved, "%v", err)
	})

	t.Run("an empty identity is an error of the save", func(t *testing.T) { // N11
		require.ErrorContains(t, k.repo.Save(ctx, k.made("")), "has no identity")
		_, err := k.repo.Get(ctx, "")
		require.ErrorContains(t, err, "has an empty id, which is what was asked for")
	})

	t.Run("one identity has one instance in a unit", func(t *testing.T) {
		k.saved(t, "same")
		require.NoError(t, k.db.units.Do(ctx, func(ctx context.Context) error {
			first, err := k.repo.Get(ctx, "same")
			require.NoError(t, err)
			first.Add(1)
			all, err := k.repo.GetMany(ctx, "same", "same")
			require.NoError(t, err)
			require.Same(t, first, all[0])
			require.Same(t, first, all[1])

			fresh := k.made("fresh")
			require.NoError(t, k.repo.Save(ctx, fresh))
			got, err := k.repo.Get(ctx, "fresh")
			require.NoError(t, err)
			require.Same(t, fresh, got)
			return k.repo.Save(ctx, first)
		}))
	})

	t.Run("GetMany keeps the order and names what is missing", func(t *testing.T) {
		for _, id := range []string{"m1", "m2", "m3"} {
			k.saved(t, id)
		}
		all, err := k.repo.GetMany(ctx, "m3", "m1", "m2", "m1")
		require.NoError(t, err)
		require.Len(t, all, 4)
		for i, id := range []string{"m3", "m1", "m2", "m1"} {
			require.Equal(t, id, all[i].ID())
			require.Equal(t, 1, all[i].Total())
		}
		require.Same(t, all[1], all[3])
		_, err = k.repo.GetMany(ctx, "m1", "m4", "m5")
		requireMissing(t, err, "m4")
		all, err = k.repo.GetMany(ctx)
		require.NoError(t, err)
		require.Empty(t, all)
	})

	t.Run("that an aggregate is missing does not doom a unit", func(t *testing.T) {
		require.NoError(t, k.db.units.Do(ctx, func(ctx context.Context) error {
			_, err := k.repo.Get(ctx, "absent")
			requireMissing(t, err, "absent")
			return k.repo.Save(ctx, k.made("absent"))
		}))
		require.EqualValues(t, 1, k.get(t, "absent").Version())
	})

	t.Run("a second save in a unit replaces the first", func(t *testing.T) {
		a := k.made("twice")
		require.NoError(t, k.db.units.Do(ctx, func(ctx context.Context) error {
			require.NoError(t, k.repo.Save(ctx, a))
			a.Add(2)
			return k.repo.Save(ctx, a)
		}))
		require.EqualValues(t, 1, a.Version())
		require.Equal(t, 3, k.get(t, "twice").Total())
		require.Equal(t, []int64{1, 1}, k.db.versions(t, k.stream+"twice"))
	})

	t.Run("after a flush it is another version", func(t *testing.T) {
		a := k.made("flushed")
		require.NoError(t, k.db.units.Do(ctx, func(ctx context.Context) error {
			require.NoError(t, k.repo.Save(ctx, a))
			require.NoError(t, uow.Flush(ctx))
			a.Add(2)
			require.NoError(t, k.repo.Save(ctx, a))
			require.NoError(t, uow.Flush(ctx))
			return k.repo.Save(ctx, a) // without an event
		}))
		require.EqualValues(t, 3, a.Version())
		got := k.get(t, "flushed")
		require.Equal(t, 3, got.Total())
		require.EqualValues(t, 3, got.Version())
		require.Equal(t, []int64{1, 2}, k.db.versions(t, k.stream+"flushed"))
		got.Add(1)
		require.NoError(t, k.repo.Save(ctx, got))
		a.Add(1)
		requireConflict(t, k.repo.Save(ctx, a), "flushed", 3)
	})

	t.Run("a save keeps the state of its moment", func(t *testing.T) {
		a := k.made("moment")
		require.NoError(t, k.db.units.Do(ctx, func(ctx context.Context) error {
			require.NoError(t, k.repo.Save(ctx, a))
			a.SetBroken(true)
			switch a := any(a).(type) {
			case *Tally:
				a.Parts[0] = 99
			case *Basket:
				a.items[0] = 99
			}
			return nil
		}))
		got := k.get(t, "moment")
		require.Equal(t, 1, got.Total())
		if tally, ok := any(got).(*Tally); ok {
			require.Equal(t, []int{1}, tally.Parts)
		}
	})

	t.Run("nothing invalid is saved", func(t *testing.T) { // A14
		k.saved(t, "valid")
		err := k.repo.Update(ctx, "valid", func(a A) error {
			a.Add(1)
			a.SetBroken(true)
			return nil
		})
		invalid, ok := errors.AsType[*uow.InvalidError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, "valid", invalid.ID)
		require.Equal(t, 1, k.get(t, "valid").Total())
		require.Len(t, k.db.outbox(t, k.stream+"valid"), 1)
	})

	t.Run("removed", func(t *testing.T) { removal(t, k) })

	t.Run("any text is kept as it is", func(t *testing.T) {
		for _, text := range []string{
			`'; DROP TABLE documents; --`, `''`, `\`, `\'`, `\\''`, `a\nb`, "line\nline\r\ttab", `"quoted"`, `{"a": [1, '?']}`, `? ?0 ?TableAlias $1 :x %s`,
			"żółć 漢字 🧾", "\u2028<script>&", "e\u0301 \u00e9", `\u0000`, "/* -- */",
		} {
			id := "text " + text
			a := k.made(id)
			a.SetLabel(text)
			require.NoError(t, k.repo.Save(ctx, a), "%q", text)
			got := k.get(t, id)
			require.Equal(t, text, got.Text())
			require.Equal(t, id, got.ID())
			require.NoError(t, k.repo.Update(ctx, id, func(a A) error {
				a.SetLabel(a.Text() + text)
				return nil
			}), "%q", text)
			require.Equal(t, text+text, k.get(t, id).Text())
		}
	})

	t.Run("what is no text is no identity", func(t *testing.T) { // N11
		long := strings.Repeat("x", 1024)
		require.NoError(t, k.repo.Save(ctx, k.made(long)))
		for id, want := range map[string]string{
			"a\x00b": "not a text that a database can store", "\xff": "not a text that a database can store",
			long + "y": "has 1025 bytes: use one of 1024 at most",
		} {
			require.ErrorContains(t, k.repo.Save(ctx, k.made(id)), want)
			_, err := k.repo.Get(ctx, id)
			requireMissing(t, err, id)
		}
	})

	t.Run("big aggregates", func(t *testing.T) {
		text := strings.Repeat("it's \\ big; ", 1<<18) // 3 MiB
		a := k.made("big")
		a.SetLabel(text)
		require.NoError(t, k.repo.Save(ctx, a))
		require.Equal(t, text, k.get(t, "big").Text())
	})

	t.Run("reading alone does not wait for a writer", func(t *testing.T) {
		k.saved(t, "free")
		require.NoError(t, k.db.units.Do(ctx, func(inner context.Context) error {
			a, err := k.repo.Get(inner, "free")
			require.NoError(t, err)
			a.Add(1)
			require.NoError(t, k.repo.Save(inner, a))
			require.NoError(t, uow.Flush(inner)) // holds the row, on SQLite the file
			require.Equal(t, 1, k.get(t, "free").Total())
			return nil
		}))
	})

	t.Run("a unit of another manager is refused", func(t *testing.T) {
		other := newUnits(t, uow.Config{Providers: []uow.Provider{k.db.provider}})
		err := other.Do(ctx, func(ctx context.Context) error {
			_, err := k.repo.Get(ctx, "simple")
			require.ErrorIs(t, err, uow.ErrOtherManager)
			require.ErrorIs(t, k.repo.Save(ctx, k.made("other")), uow.ErrOtherManager)
			require.ErrorIs(t, k.repo.Remove(ctx, k.made("other")), uow.ErrOtherManager)
			return nil
		})
		require.NoError(t, err)
	})

	t.Run("a context from an ended unit is refused", func(t *testing.T) {
		var ended context.Context
		require.NoError(t, k.db.units.Do(ctx, func(ctx context.Context) error {
			ended = ctx //nolint:fatcontext // to be used too late
			return nil
		}))
		_, err := k.repo.Get(ended, "simple")
		require.ErrorIs(t, err, uow.ErrDone)
		require.ErrorIs(t, k.repo.Save(ended, k.made("late")), uow.ErrDone)
	})

	t.Run("what raised and was not saved fails the commit", func(t *testing.T) {
		k.saved(t, "forgotten")
		err := k.db.units.Do(ctx, func(ctx context.Context) error {
			a, err := k.repo.Get(ctx, "forgotten")
			require.NoError(t, err)
			a.Add(1)
			return nil
		})
		unsaved, ok := errors.AsType[*uow.UnsavedError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, "forgotten", unsaved.ID)
	})

	t.Run("a database error is told", func(t *testing.T) {
		stopped, cancel := context.WithCancel(ctx)
		cancel()
		_, err := k.repo.Get(stopped, "simple")
		require.ErrorIs(t, err, context.Canceled)
		require.Error(t, k.repo.Save(stopped, k.made("stopped")))
		_, err = k.repo.Get(ctx, "stopped")
		requireMissing(t, err, "stopped")
	})
}
