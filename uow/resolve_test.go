package uow_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/rootstate"
	"github.com/waybill-go/waybill/uow"
)

// lose lets the next commit happen or not, and its answer be lost.
func (w *world) lose(happens bool) {
	w.db.commit = func(_ uow.Session, commit func() error) error {
		w.db.commit = nil
		if happens {
			if err := commit(); err != nil {
				return err
			}
		}
		return &uow.CommitUnknownError{Err: errors.New("lost")}
	}
}

func unknown(t *testing.T, err error) *uow.CommitUnknownError {
	t.Helper()
	e, ok := errors.AsType[*uow.CommitUnknownError](err)
	require.True(t, ok, "%v", err)
	return e
}

// F-55: what Do does after a commit, Resolve does, once.
func TestResolve_F55_DoesWhatDoWouldHave(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		for _, happened := range []bool{true, false} {
			w := newWorld(t, open)
			w.saved(t, newAccount("a"))
			after := 0
			a, b := newAccount("a"), newAccount("b")
			require.NoError(t, scan(t.Context(), w.db.Reader(), a))
			a.Deposit(1)
			b.Deposit(2)
			w.lose(happened)
			lost := unknown(t, w.units.Do(t.Context(), func(ctx context.Context) error {
				u, err := uow.From(ctx)
				require.NoError(t, err)
				u.AfterCommit(func(context.Context) { after++ })
				return errors.Join(w.save(ctx, a), w.save(ctx, b))
			}))
			a.Annotate("raised since")

			want := uow.NotCommitted
			if happened {
				want = uow.Committed
			}
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					outcome, err := lost.Resolve(t.Context())
					require.NoError(t, err)
					require.Equal(t, want, outcome)
				})
			}
			wg.Wait()
			if happened {
				require.Equal(t, []string{"default[default partner]"}, *w.wakes)
				require.Equal(t, 1, after)
				require.Equal(t, []int64{2, 1}, []int64{a.Version(), b.Version()})
				require.Len(t, rootstate.Of(a).Raised, 1)
				require.Empty(t, rootstate.Of(b).Raised)
			} else {
				require.Empty(t, *w.wakes)
				require.Zero(t, after)
				require.Equal(t, []int64{1, 0}, []int64{a.Version(), b.Version()})
				require.Len(t, rootstate.Of(a).Raised, 2)
			}
			require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error { return errors.Join(w.save(ctx, a), w.save(ctx, b)) }))
			require.Len(t, w.events(t), 3, "each event once")
			w.returned(t)
		}
	})
}

// The answers of Resolve where there is nothing to ask.
func TestResolve_CannotKnow(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		w.lose(true)
		lost := unknown(t, w.units.Do(t.Context(), func(ctx context.Context) error {
			db, err := uow.DB(ctx)
			require.NoError(t, err)
			_, err = db.ExecContext(ctx, "UPDATE things SET version = version")
			return err
		}))
		_, err := lost.Resolve(t.Context())
		require.ErrorContains(t, err, "saved no aggregate")

		_, err = (&uow.CommitUnknownError{Err: errors.New("of a session")}).Resolve(t.Context())
		require.ErrorContains(t, err, "only the error that Do returns")

		a := newAccount("a")
		a.Deposit(1)
		w.lose(true)
		lost = unknown(t, w.units.Do(t.Context(), func(ctx context.Context) error { return w.save(ctx, a) }))
		require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error {
			_, err := lost.Resolve(ctx)
			require.ErrorContains(t, err, "inside a unit of work")
			return nil
		}))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = lost.Resolve(ctx)
		require.ErrorIs(t, err, context.Canceled)
		outcome, err := lost.Resolve(t.Context())
		require.NoError(t, err)
		require.Equal(t, uow.Committed, outcome, "an error is no answer")
		require.Equal(t, "committed, not committed, overwritten since, Outcome(0)",
			outcome.String()+", "+uow.NotCommitted.String()+", "+uow.Overwritten.String()+", "+uow.Outcome(0).String())
	})
}

// With two databases Resolve speaks of the one that didn't answer.
func TestResolve_AcrossProviders(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		for _, last := range []bool{false, true} {
			second := &spy{Provider: open(t, "second")}
			w := newWorld(t, open, func(c *uow.Config) { c.Providers = append(c.Providers, second) })
			w.create(t, second)
			losing := w.db
			if last {
				losing = second
			}
			losing.commit = func(_ uow.Session, commit func() error) error {
				return &uow.CommitUnknownError{Err: errors.Join(errors.New("lost"), commit())}
			}
			after := 0
			a, c := newAccount("a"), newCustomer("c")
			a.Deposit(1)
			c.Rename("x")
			lost := unknown(t, w.units.Do(t.Context(), func(ctx context.Context) error {
				u, err := uow.From(ctx)
				require.NoError(t, err)
				u.AfterCommit(func(context.Context) { after++ })
				return errors.Join(w.save(ctx, a), store{provider: "second"}.save(ctx, c))
			}, uow.AcrossProviders()))
			outcome, err := lost.Resolve(t.Context())
			require.NoError(t, err)
			require.Equal(t, uow.Committed, outcome)
			require.EqualValues(t, 1, a.Version())
			if last {
				require.EqualValues(t, 1, c.Version())
				require.Equal(t, 1, after)
			} else {
				require.EqualValues(t, 0, c.Version())
				require.Len(t, rootstate.Of(c).Raised, 1)
				require.Zero(t, after)
			}
		}
	})
}
