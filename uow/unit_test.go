package uow_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/rootstate"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

var errGiveUp = errors.New("give up")

// C-05: stored when committed.
// Conformance: S2-01.
func TestSave_A1_S301_StateAndRowsTogether(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		a := newAccount("a")
		a.Deposit(1)
		a.Annotate("hello")
		a.Deposit(2)
		require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error { return w.save(ctx, a) }))

		require.Equal(t, []string{"account-a@1"}, w.things(t))
		require.Equal(t, []string{"account-a@1 Deposited", "account-a@1 Noted", "account-a@1 Deposited"}, w.events(t))
		perTarget := map[string]int{}
		for _, r := range rows(t, w.db) {
			perTarget[r.TargetBroker]++
			require.Equal(t, "pending", r.Status)
		}
		require.Equal(t, map[string]int{"default": 3, "partner": 2}, perTarget, "partners get what is published")
		require.EqualValues(t, 1, a.Version())
		require.Empty(t, rootstate.Of(a).Raised)
		require.Equal(t, []string{"default[default partner]"}, *w.wakes)
		w.returned(t)
	})
}

// C-04, S1-02, S1-05: neither stored nor announced when not committed.
// Conformance: S1-02, S1-05, S2-01.
func TestDo_A2_S301_ErrorLeavesNothing(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		for name, step := range map[string]func(context.Context) error{
			"nothing sent": func(context.Context) error { return nil },
			"flushed":      uow.Flush,
			"DB":           func(ctx context.Context) error { _, err := uow.DB(ctx); return err },
		} {
			a := newAccount("a")
			a.Deposit(1)
			err := w.units.Do(t.Context(), func(ctx context.Context) error {
				require.NoError(t, w.save(ctx, a), name)
				require.NoError(t, step(ctx), name)
				return errGiveUp
			})
			require.ErrorIs(t, err, errGiveUp)
			w.nothing(t)
			require.EqualValues(t, 0, a.Version())
			require.Len(t, rootstate.Of(a).Raised, 1, "kept for another try")
		}
	})
}

// F-56: what a failed save left is stored by the next one, once.
// Conformance: U-24.
func TestDo_F56_EventsSurviveAFailedSave(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		a := newAccount("a")
		a.Deposit(1)
		id := rootstate.Of(a).Raised[0].ID
		for range 3 {
			require.Error(t, w.units.Do(t.Context(), func(ctx context.Context) error {
				return errors.Join(w.save(ctx, a), uow.Flush(ctx), errGiveUp)
			}))
		}
		w.saved(t, a)
		w.saved(t, a)
		require.Equal(t, []string{"account-a@1 Deposited"}, w.events(t))
		require.Equal(t, []string{"account-a@2"}, w.things(t))
		require.Equal(t, id, rows(t, w.db)[0].MessageID)
	})
}

func TestDo_PanicAndGoexitRollBack(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		unit := func(end func()) {
			_ = w.units.Do(context.Background(), func(ctx context.Context) error {
				a := newAccount("a")
				a.Deposit(1)
				if err := errors.Join(w.save(ctx, a), uow.Flush(ctx)); err != nil {
					return err
				}
				end()
				return nil
			})
		}
		require.PanicsWithValue(t, "boom", func() { unit(func() { panic("boom") }) })
		w.nothing(t)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			unit(runtime.Goexit)
		}()
		<-ended
		w.nothing(t)
		w.saved(t, newAccount("a"))
	})
}

func TestDo_A10_NothingDoneNothingTaken(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error { return nil }))
		require.ErrorIs(t, w.units.Do(t.Context(), func(ctx context.Context) error { return errGiveUp }), errGiveUp)
		require.Empty(t, w.db.calls, "not even a session")

		w.saved(t, newAccount("a"))
		require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error {
			_, err := get(ctx, w.store, newAccount("a"))
			return err
		}))
		require.Equal(t, []string{"commit 0"}, w.db.calls, "to read takes no transaction")
		require.Empty(t, *w.wakes)
	})
}

// F-58, C-56, S1-20: events are stored once, however often and in how many flushes the
// aggregate is saved.
func TestSave_F58_Twice(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		a, b := newAccount("a"), newAccount("b")
		require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error {
			for _, flush := range []func(context.Context) error{func(context.Context) error { return nil }, uow.Flush} {
				for _, x := range []*Account{a, b} {
					x.Deposit(1)
					require.NoError(t, w.save(ctx, x))
					require.NoError(t, w.save(ctx, x))
					x.Annotate("more")
					require.NoError(t, w.save(ctx, x))
				}
				require.NoError(t, flush(ctx))
			}
			return w.save(ctx, b)
		}))
		require.Equal(t, []string{"account-a@1", "account-b@2"}, w.things(t))
		require.Equal(t, strings.Repeat("account-a@1 Deposited,account-a@1 Noted,account-b@1 Deposited,account-b@1 Noted,", 2),
			strings.Join(w.events(t), ",")+",")
		require.EqualValues(t, 1, a.Version())
		require.EqualValues(t, 2, b.Version())
		require.Equal(t, "1.4", sequences(t, rows(t, w.db))[rows(t, w.db)[len(rows(t, w.db))-1].MessageID])
		w.saved(t, a)
		require.Len(t, w.events(t), 8, "nothing is raised again")
	})
}

// C-56
func TestSave_VersionsOfSeveralFlushes(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		a := newAccount("a")
		require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error {
			for range 3 {
				a.Deposit(1)
				require.NoError(t, w.save(ctx, a))
				require.NoError(t, uow.Flush(ctx))
				require.EqualValues(t, 0, a.Version(), "until it is committed")
			}
			return nil
		}))
		require.EqualValues(t, 3, a.Version())
		require.Equal(t, []string{"account-a@1 Deposited", "account-a@2 Deposited", "account-a@3 Deposited"}, w.events(t))
	})
}

// S3-02: the events of several aggregates are in the order in which they were
// raised, all or none.
// Conformance: S1-20.
func TestSave_S302_RaiseOrder(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		a, b, c := newAccount("a"), newAccount("b"), newCustomer("c")
		unit := func(end error) error {
			return w.units.Do(t.Context(), func(ctx context.Context) error {
				return errors.Join(w.save(ctx, c), w.save(ctx, b), w.save(ctx, a), end)
			})
		}
		b.Deposit(1)
		c.Rename("Ann")
		a.Deposit(1)
		b.Annotate("x")
		a.Annotate("y")
		require.ErrorIs(t, unit(errGiveUp), errGiveUp)
		w.nothing(t)
		require.NoError(t, unit(nil))
		require.Equal(t, []string{
			"account-b@1 Deposited", "customer-c@1 Renamed", "account-a@1 Deposited", "account-b@1 Noted", "account-a@1 Noted",
		}, w.events(t))
		require.Equal(t, []string{"account-a@1", "account-b@1", "customer-c@1"}, w.things(t))
	})
}

// A12: an id is unique within its type only.
// Conformance: D14.
func TestSave_A12_SameIDTwoTypes(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		a, c := newAccount("same"), newCustomer("same")
		a.Deposit(1)
		c.Rename("Ann")
		w.saved(t, a, c)
		require.Equal(t, []string{"account-same@1 Deposited", "customer-same@1 Renamed"}, w.events(t))
		require.Equal(t, []string{"account-same@1", "customer-same@1"}, w.things(t))
	})
}

// A14, D15: what breaks an invariant is never stored, nor is the rest of its unit.
func TestSave_A14_D15_Invariant(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		a, b := newAccount("a"), newAccount("b")
		a.Deposit(1)
		b.Deposit(-1)
		for _, swallow := range []bool{false, true} {
			err := w.units.Do(t.Context(), func(ctx context.Context) error {
				require.NoError(t, w.save(ctx, a))
				err := w.save(ctx, b)
				require.ErrorIs(t, err, errOverdrawn)
				if swallow {
					return nil
				}
				return err
			})
			invalid, ok := errors.AsType[*uow.InvalidError](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, "b", invalid.ID)
			w.nothing(t)
		}
		b.Deposit(5)
		w.saved(t, a, b)
		require.Equal(t, []string{"account-a@1 Deposited", "account-b@1 Deposited", "account-b@1 Deposited"}, w.events(t))
	})
}

func TestCommit_Unsaved(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		w.saved(t, newAccount("a"))
		for name, fn := range map[string]func(ctx context.Context, a *Account) error{
			"loaded":             func(ctx context.Context, a *Account) error { a.Deposit(1); return nil },
			"changed after Save": func(ctx context.Context, a *Account) error { err := w.save(ctx, a); a.Deposit(1); return err },
			"changed after Flush": func(ctx context.Context, a *Account) error {
				a.Deposit(1)
				err := errors.Join(w.save(ctx, a), uow.Flush(ctx))
				a.Deposit(1)
				return err
			},
		} {
			err := w.units.Do(t.Context(), func(ctx context.Context) error {
				a, err := get(ctx, w.store, newAccount("a"))
				if err != nil {
					return err
				}
				return fn(ctx, a)
			})
			require.Equal(t, &uow.UnsavedError{Type: "account", ID: "a", Event: "uow_test.Deposited"}, err, name)
			require.Equal(t, []string{"account-a@1"}, w.things(t))
			require.Empty(t, rows(t, w.db))
		}
		err := w.units.Do(t.Context(), func(ctx context.Context) error {
			a, err := get(ctx, w.store, newAccount("a"))
			if err == nil {
				domain.SetTimer(a, "due", time.Now(), struct{}{})
			}
			return err
		})
		require.Equal(t, &uow.UnsavedError{Type: "account", ID: "a", Timer: "due"}, err)
	})
}

// C-30
func TestSave_Refused(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		refused := func(fn func(ctx context.Context) error) error {
			var refusal error
			err := w.units.Do(t.Context(), func(ctx context.Context) error {
				refusal = fn(ctx)
				require.Error(t, refusal)
				return nil // swallowed
			})
			_, ok := errors.AsType[*uow.DoomedError](err)
			require.True(t, ok, "%v", err)
			require.ErrorIs(t, err, refusal)
			w.nothing(t)
			return refusal
		}
		require.ErrorContains(t, refused(func(ctx context.Context) error { return w.save(ctx, &Account{}) }), "identity")
		require.ErrorContains(t, refused(func(ctx context.Context) error {
			a := newAccount("a")
			a.Raise(Stray{})
			return w.save(ctx, a)
		}), "Stray")
		require.ErrorContains(t, refused(func(ctx context.Context) error {
			a := newAccount("a")
			a.Raise(Renamed{})
			return w.save(ctx, a)
		}), "another aggregate")
		require.ErrorContains(t, refused(func(ctx context.Context) error {
			require.NoError(t, w.save(ctx, newAccount("a")))
			return w.save(ctx, newAccount("a"))
		}), "two instances")
		_, ok := errors.AsType[*domain.UndeclaredError](refused(func(ctx context.Context) error {
			return w.save(ctx, &undeclared{Root: domain.NewRoot()})
		}))
		require.True(t, ok)
	})
}

type undeclared struct{ domain.Root }

// S2-26: a unit with a body over the limit doesn't commit.
func TestSave_TooLarge(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open, func(c *uow.Config) { c.MaxMessageBytes = 2000 })
		a := newAccount("a")
		a.Annotate(strings.Repeat("x", 3000))
		err := w.units.Do(t.Context(), func(ctx context.Context) error { return w.save(ctx, a) })
		_, ok := errors.AsType[*outbox.TooLargeError](err)
		require.True(t, ok, "%v", err)
		w.nothing(t)
	})
}

func TestRemove(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		w.saved(t, newAccount("a"))
		require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error {
			a, err := get(ctx, w.store, newAccount("a"))
			if err != nil {
				return err
			}
			u, err := uow.From(ctx)
			if err != nil {
				return err
			}
			a.Deposit(-10) // a removed aggregate needs not be valid
			err = w.remove(ctx, a)
			_, held := u.Identity("bank::account", "a")
			require.False(t, held)
			return err
		}))
		require.Empty(t, w.things(t))
		require.Equal(t, []string{"account-a@2 Deposited"}, w.events(t), "what it raised is published")
	})
}
