package uow_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/internal/rootstate"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

// deposit is a unit that loads what it changes.
func (w *world) deposit(ctx context.Context, id string, n int, between func(ctx context.Context) error) error {
	return w.units.Do(ctx, func(ctx context.Context) error {
		a, err := get(ctx, w.store, newAccount(id))
		if err != nil {
			return err
		}
		a.Deposit(n)
		if err := between(ctx); err != nil {
			return err
		}
		return w.save(ctx, a)
	})
}

func none(context.Context) error { return nil }

// A11: two loads, two saves: the second is refused, and its events are nowhere.
func TestConflict_A11_StaleWriter(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		w.saved(t, newAccount("a"))
		one, two := newAccount("a"), newAccount("a")
		require.NoError(t, scan(t.Context(), w.db.Reader(), one))
		require.NoError(t, scan(t.Context(), w.db.Reader(), two))
		one.Deposit(1)
		two.Deposit(2)
		save := func(a *Account) (runs int, err error) {
			err = w.units.Do(t.Context(), func(ctx context.Context) error {
				runs++
				return w.save(ctx, a)
			})
			return runs, err
		}
		_, err := save(one)
		require.NoError(t, err)
		for range 2 {
			runs, err := save(two)
			conflict, ok := errors.AsType[*uow.ConflictError](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, uow.ConflictError{Type: "account", ID: "a", Expected: 1}, *conflict)
			require.Equal(t, 1, runs, "to run again can't help with an aggregate from outside")
		}
		require.Equal(t, []string{"account-a@2 Deposited"}, w.events(t))
		require.EqualValues(t, 1, two.Version())
		require.Len(t, rootstate.Of(two).Raised, 1)

		_, err = save(newAccount("a"))
		require.ErrorContains(t, err, "exists already")
		w.returned(t)
	})
}

// F-56: after a conflict the unit starts over from the database, and each event
// is stored once.
// Conformance: U-24.
func TestConflict_F56_RunsAgain(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		w.saved(t, newAccount("a"))
		runs := 0
		require.NoError(t, w.deposit(t.Context(), "a", 1, func(ctx context.Context) error {
			runs++
			if runs < 3 { // somebody else is faster
				return w.deposit(t.Context(), "a", 10, none)
			}
			return nil
		}))
		require.Equal(t, 3, runs)
		require.Equal(t, []string{"account-a@2 Deposited", "account-a@3 Deposited", "account-a@4 Deposited"}, w.events(t))
		a := newAccount("a")
		require.NoError(t, scan(t.Context(), w.db.Reader(), a))
		require.Equal(t, 21, a.Balance)
	})
}

func TestConflict_GivesUp(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		for retries, want := range map[int]int{3: 4, 1: 2, -1: 1} {
			w := newWorld(t, open, func(c *uow.Config) { c.MaxRetries = retries })
			w.saved(t, newAccount("a"))
			runs := 0
			err := w.deposit(t.Context(), "a", 1, func(ctx context.Context) error {
				runs++
				return w.deposit(t.Context(), "a", 10, none)
			})
			_, ok := errors.AsType[*uow.ConflictError](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, want, runs)
			require.Len(t, w.events(t), want, "those of the others")
		}
	})
}

func TestConflict_Flush(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		w.saved(t, newAccount("a"))
		err := w.units.Do(t.Context(), func(ctx context.Context) error {
			stale := newAccount("a")
			if err := w.save(ctx, stale); err != nil {
				return err
			}
			err := uow.Flush(ctx)
			_, ok := errors.AsType[*uow.ConflictError](err)
			require.True(t, ok, "it shows now")
			_, err = uow.DB(ctx)
			_, ok = errors.AsType[*uow.DoomedError](err)
			require.True(t, ok, "and the unit is over")
			return nil
		})
		_, ok := errors.AsType[*uow.ConflictError](err)
		require.True(t, ok, "%v", err)
	})
}

func TestRetry_ContextEnds(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		w.saved(t, newAccount("a"))
		ctx, cancel := context.WithCancel(t.Context())
		runs := 0
		err := w.units.Do(ctx, func(ctx context.Context) error {
			runs++
			a, err := get(ctx, w.store, newAccount("a"))
			if err != nil {
				return err
			}
			cancel()
			a.Deposit(1)
			return errors.Join(w.save(ctx, a), &uow.ConflictError{Type: "account", ID: "a", Expected: 1})
		})
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 1, runs)
		require.Empty(t, w.events(t))
		w.returned(t)
	})
}

// An aggregate from outside that each run changes anew would raise its events
// twice.
func TestRerun(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		w.saved(t, newAccount("loaded"))
		outside := newAccount("outside")
		runs := 0
		err := w.deposit(t.Context(), "loaded", 1, func(ctx context.Context) error {
			runs++
			outside.Deposit(5)
			if err := w.save(ctx, outside); err != nil {
				return err
			}
			if runs == 1 {
				return w.deposit(t.Context(), "loaded", 10, none)
			}
			return nil
		})
		require.Equal(t, &uow.RerunError{Type: "account", ID: "outside"}, err)
		require.Equal(t, 2, runs)
		require.Equal(t, []string{"account-loaded@2"}, w.things(t))
	})
}

// One from outside that was changed outside may be saved by every run.
func TestRerun_ChangedOutside(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		w.saved(t, newAccount("loaded"))
		outside := newAccount("outside")
		outside.Deposit(5)
		runs := 0
		require.NoError(t, w.deposit(t.Context(), "loaded", 1, func(ctx context.Context) error {
			runs++
			if runs == 1 {
				if err := w.deposit(t.Context(), "loaded", 10, none); err != nil {
					return err
				}
			}
			return w.save(ctx, outside)
		}))
		require.Equal(t, 2, runs)
		require.Equal(t, []string{"account-loaded@2 Deposited", "account-outside@1 Deposited", "account-loaded@3 Deposited"}, w.events(t))
	})
}

// F-27, F-56: the victim of a deadlock runs again, and its events are stored once.
func TestDeadlock_F56(t *testing.T) {
	w := newWorld(t, openPostgres)
	w.saved(t, newAccount("a"), newAccount("b"))
	var met sync.WaitGroup
	met.Add(2)
	var errs [2]error
	var runs [2]int
	var wg sync.WaitGroup
	for i, order := range [][]string{{"a", "b"}, {"b", "a"}} {
		units := w.another(t)
		wg.Go(func() {
			errs[i] = units.Do(context.Background(), func(ctx context.Context) error {
				runs[i]++
				for n, id := range order {
					a, err := get(ctx, w.store, newAccount(id))
					if err != nil {
						return err
					}
					a.Deposit(1)
					if err := errors.Join(w.save(ctx, a), uow.Flush(ctx)); err != nil {
						return err
					}
					if n == 0 && runs[i] == 1 {
						met.Done()
						met.Wait()
					}
				}
				return nil
			})
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs[:]...))
	require.Greater(t, runs[0]+runs[1], 2)
	require.Equal(t, []string{"account-a@3", "account-b@3"}, w.things(t))
	require.Len(t, w.events(t), 4)
}

// another is a manager of the same kind, without the spy.
func (w *world) another(t *testing.T) *uow.Manager {
	t.Helper()
	units, err := uow.New(uow.Config{Domain: w.units.Domain(), Providers: []uow.Provider{w.db.Provider}, External: w.units.External(), MaxRetries: w.retries})
	require.NoError(t, err)
	return units
}

// A13, S1-02, S1-05: what only COMMIT refuses is nowhere either, and nobody is woken.
// Conformance: F-63, S1-02, S1-05.
func TestCommit_A13_Failure(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		_, err := w.owner.ExecContext(t.Context(), "CREATE TABLE parents (id text PRIMARY KEY)")
		require.NoError(t, err)
		_, err = w.owner.ExecContext(t.Context(), "CREATE TABLE children (parent text REFERENCES parents DEFERRABLE INITIALLY DEFERRED)")
		require.NoError(t, err)
		for _, first := range []func(context.Context) error{none, uow.Flush} {
			a := newAccount("a")
			a.Deposit(1)
			err = w.units.Do(t.Context(), func(ctx context.Context) error {
				u, err := uow.From(ctx)
				if err != nil {
					return err
				}
				orphan := uow.Statement{Query: bun.SafeQuery("INSERT INTO children VALUES ('nobody')"), Rows: -1}
				return errors.Join(w.save(ctx, a), u.Guard("", orphan), first(ctx))
			})
			require.Error(t, err)
			_, unknown := errors.AsType[*uow.CommitUnknownError](err)
			require.False(t, unknown)
			w.nothing(t)
			require.EqualValues(t, 0, a.Version())
			require.Len(t, rootstate.Of(a).Raised, 1)
		}
	})
}

// F-55: after a COMMIT without an answer nothing runs again, nobody is woken,
// and the aggregate keeps its events.
func TestCommit_F55_Unknown(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		for _, happened := range []bool{false, true} {
			w := newWorld(t, open)
			w.saved(t, newAccount("a"))
			errLost := errors.New("lost")
			w.db.commit = func(s uow.Session, commit func() error) error {
				if happened {
					require.NoError(t, commit())
				}
				return &uow.CommitUnknownError{Err: errors.Join(errLost, &uow.ConflictError{Type: "account", ID: "a"})}
			}
			runs := 0
			var a *Account
			err := w.units.Do(t.Context(), func(ctx context.Context) (err error) {
				runs++
				if a, err = get(ctx, w.store, newAccount("a")); err != nil {
					return err
				}
				a.Deposit(1)
				return w.save(ctx, a)
			})
			require.ErrorIs(t, err, errLost)
			_, unknown := errors.AsType[*uow.CommitUnknownError](err)
			require.True(t, unknown)
			require.Equal(t, 1, runs)
			require.Empty(t, *w.wakes)
			require.Len(t, rootstate.Of(a).Raised, 1)
			if happened {
				require.Len(t, w.events(t), 1)
			} else {
				require.Empty(t, w.events(t))
			}
			w.returned(t)
		}
	})
}

// F-02: several writers of one aggregate, whose units overlap: nothing is lost,
// and the order of seq is that of its versions.
// Conformance: U-01.
func TestConcurrentWriters(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		w.saved(t, newAccount("a"))
		const writers, each = 4, 15
		errs := make([]error, writers)
		var wg sync.WaitGroup
		for i := range writers {
			units := w.another(t)
			wg.Go(func() {
				for range each {
					errs[i] = errors.Join(errs[i], units.Do(context.Background(), func(ctx context.Context) error {
						a, err := get(ctx, w.store, newAccount("a"))
						if err != nil {
							return err
						}
						a.Deposit(1)
						return w.save(ctx, a)
					}))
				}
			})
		}
		wg.Wait()
		require.NoError(t, errors.Join(errs...))
		var want []string
		for v := range writers * each {
			want = append(want, fmt.Sprintf("account-a@%d Deposited", v+2))
		}
		require.True(t, slices.Equal(want, w.events(t)), "%v", w.events(t))
	})
}

// A unit that has a connection needs no other one: all may be in use.
func TestSmallPool(t *testing.T) {
	w := newWorld(t, func(t *testing.T, name string) uow.Provider {
		p, cfg := dbtest.Postgres(t, func(c *postgres.Config) { c.Name, c.MaxConns = name, 2 })
		return owner{p, cfg}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, w.another(t).Do(ctx, func(ctx context.Context) error {
		if _, err := uow.DB(ctx); err != nil {
			return err
		}
		other, err := w.db.DB().Conn(ctx)
		if err != nil {
			return err
		}
		defer func() { require.NoError(t, other.Close()) }()
		a := newAccount("a")
		a.Deposit(1)
		return w.save(ctx, a)
	}))
	require.Len(t, w.events(t), 1)
}
