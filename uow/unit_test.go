package uow_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/rootstate"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

var errGiveUp = errors.New("give up")

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

// F-58: events are stored once, however often and in how many flushes the
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
	})
}

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

// S4-06, F-27: state, then rows, then COMMIT, and only then the wake-up.
func TestCommit_S406_F27_Order(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		var seen []string
		defer w.units.OnCommit(func(string, []string) { seen = w.events(t) })()
		w.db.commit = func(_ uow.Session, commit func() error) error {
			require.Empty(t, *w.wakes)
			return commit()
		}
		b, a := newAccount("b"), newAccount("a")
		b.Deposit(1)
		a.Deposit(1)
		require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error {
			u, err := uow.From(ctx)
			if err != nil {
				return err
			}
			u.AfterCommit(func(context.Context) { seen = append(seen, "after") })
			return errors.Join(w.save(ctx, b), w.save(ctx, a))
		}))
		require.Equal(t, []string{"commit 3"}, w.db.calls, "one message")
		require.Contains(t, w.db.texts[0], "INSERT INTO things")
		require.Contains(t, w.db.texts[0], "'a'", "in the order of type and id, against deadlocks")
		require.Contains(t, w.db.texts[1], "'b'")
		require.Contains(t, w.db.texts[2], "INSERT INTO outbox")
		require.Equal(t, []string{"account-b@1 Deposited", "account-a@1 Deposited", "after"}, seen, "committed before anybody is told")
		require.Len(t, *w.wakes, 1)
	})
}

func TestOnCommit(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		w.saved(t, newAccount("a"))
		change := func(fn func(a *Account)) {
			require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error {
				a, err := get(ctx, w.store, newAccount("a"))
				if err != nil {
					return err
				}
				fn(a)
				return w.save(ctx, a)
			}))
		}
		change(func(*Account) {})
		require.Empty(t, *w.wakes, "no events, nobody to wake")
		change(func(a *Account) { a.Annotate("x") })
		require.Equal(t, []string{"default[default]"}, *w.wakes)
		change(func(a *Account) { a.Annotate("x"); a.Deposit(1) })
		require.Equal(t, []string{"default[default]", "default[default partner]"}, *w.wakes)
		called := 0
		cancel := w.units.OnCommit(func(string, []string) { called++ })
		change(func(a *Account) { a.Deposit(1) })
		cancel()
		change(func(a *Account) { a.Deposit(1) })
		require.Equal(t, 1, called)
	})
}

// S3-29: without an outbox its table isn't needed either.
func TestNoOutbox_S329(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		p := open(t, "default")
		_, err := p.DB().ExecContext(t.Context(), tables)
		require.NoError(t, err)
		units, err := uow.New(uow.Config{Domain: bank, Providers: []uow.Provider{p}, NoOutbox: true})
		require.NoError(t, err)
		require.True(t, units.OutboxDisabled())
		defer units.OnCommit(func(string, []string) { t.Error("woken for nothing") })()
		a := newAccount("a")
		a.Deposit(1)
		require.NoError(t, units.Do(t.Context(), func(ctx context.Context) error { return store{}.save(ctx, a) }))
		require.EqualValues(t, 1, a.Version())
		require.Empty(t, rootstate.Of(a).Raised)

		require.NoError(t, outbox.Migrate(t.Context(), p.DB(), 0))
		later, err := uow.New(uow.Config{Domain: bank, Providers: []uow.Provider{p}})
		require.NoError(t, err)
		a.Deposit(1)
		require.NoError(t, later.Do(t.Context(), func(ctx context.Context) error { return store{}.save(ctx, a) }))
		require.Len(t, rows(t, p), 1)
	})
}

func TestOutboxMissing(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		p := open(t, "default")
		_, err := p.DB().ExecContext(t.Context(), tables)
		require.NoError(t, err)
		units, err := uow.New(uow.Config{Domain: bank, Providers: []uow.Provider{p}})
		require.NoError(t, err)
		for _, before := range []func(context.Context) error{
			func(context.Context) error { return nil },
			func(ctx context.Context) error { _, err := uow.DB(ctx); return err },
		} {
			a := newAccount("a")
			a.Deposit(1)
			err := units.Do(t.Context(), func(ctx context.Context) error {
				return errors.Join(before(ctx), store{}.save(ctx, a))
			})
			require.ErrorContains(t, err, "waybill migrate")
		}
	})
}

func TestPartitionsMismatch(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open, func(c *uow.Config) { c.Partitions = 7 })
		a := newAccount("a")
		a.Deposit(1)
		err := w.units.Do(t.Context(), func(ctx context.Context) error { return w.save(ctx, a) })
		mismatch, ok := errors.AsType[*outbox.PartitionsError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, outbox.PartitionsError{Have: 64, Want: 7}, *mismatch)
		w.nothing(t)
	})
}

func TestMetadata(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		a, b := newAccount("a"), newAccount("b")
		a.Deposit(1)
		b.Annotate("x")
		w.saved(t, a, b)
		first := rows(t, w.db)
		require.NotEmpty(t, first[0].CorrelationID)
		for _, r := range first {
			require.Equal(t, first[0].CorrelationID, r.CorrelationID, "one for all events of a unit")
			require.Empty(t, r.CausationID)
		}
		a.Annotate("y")
		w.saved(t, a)
		require.NotEqual(t, first[0].CorrelationID, last(t, w).CorrelationID, "and another for the next")

		message := domain.Metadata{ID: "01900000-0000-7000-8000-000000000001", Priority: 7, Origin: domain.Origin{TenantID: "acme"}}
		handler := domain.WithMetadata(t.Context(), message)
		a.Annotate("z")
		require.NoError(t, w.units.Do(handler, func(ctx context.Context) error { return w.save(ctx, a) }))
		require.Equal(t, message.ID, last(t, w).CorrelationID, "a message without correlation begins one")
		require.Equal(t, message.ID, last(t, w).CausationID)
		require.Equal(t, "acme", last(t, w).TenantID)
		require.Equal(t, 7, last(t, w).Priority)

		message.CorrelationID = "order-4711"
		a.Annotate("zz")
		require.NoError(t, w.units.Do(domain.WithMetadata(t.Context(), message), func(ctx context.Context) error { return w.save(ctx, a) }))
		require.Equal(t, "order-4711", last(t, w).CorrelationID)
	})
}

func last(t *testing.T, w *world) row {
	all := rows(t, w.db)
	return all[len(all)-1]
}

// sequences are domain.sequence_id of each message.
func sequences(t *testing.T, all []row) map[string]string {
	found := map[string]string{}
	for _, r := range all {
		m, _, err := outbox.ParseEnvelope(r.Payload)
		require.NoError(t, err)
		found[r.MessageID] = m.Sequence
	}
	return found
}

func TestDB(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		_, err := uow.DB(t.Context())
		require.ErrorIs(t, err, uow.ErrNone)
		require.ErrorIs(t, uow.Flush(t.Context()), uow.ErrNone)

		a := newAccount("a")
		a.Deposit(1)
		units := make(chan context.Context, 1)
		require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error {
			units <- ctx
			require.NoError(t, w.save(ctx, a))
			db, err := uow.DB(ctx)
			require.NoError(t, err)
			var n int
			require.NoError(t, db.NewRaw("SELECT count(*) FROM outbox").Scan(ctx, &n))
			require.Equal(t, 2, n, "what was saved before is there")
			require.NoError(t, scan(ctx, db, newAccount("a")))
			_, err = db.ExecContext(ctx, "INSERT INTO things VALUES ('bank::account', 'by-hand', 1, '{}')")
			require.NoError(t, err)
			_, err = get(ctx, w.store, newAccount("by-hand"))
			require.NoError(t, err, "repositories read the transaction, once it has begun")
			require.Empty(t, w.things(t), "others see nothing yet")
			return nil
		}))
		require.Equal(t, []string{"account-a@1", "account-by-hand@1"}, w.things(t))
		require.Len(t, w.events(t), 1)

		leaked := <-units
		_, err = uow.DB(leaked)
		require.ErrorIs(t, err, uow.ErrDone)
		require.ErrorIs(t, w.save(leaked, a), uow.ErrDone)
		require.ErrorIs(t, w.units.Do(leaked, func(context.Context) error { return nil }), uow.ErrDone)
	})
}

func TestGuardGoesFirst(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		errSeen := errors.New("seen before")
		handle := func(id string) error {
			return w.units.Do(t.Context(), func(ctx context.Context) error {
				u, err := uow.From(ctx)
				if err != nil {
					return err
				}
				a := newAccount(id)
				a.Deposit(1)
				if err := w.save(ctx, a); err != nil {
					return err
				}
				guard, err := store{}.Persist(uow.Change{Aggregate: newCustomer("message"), Type: must(bank.AggregateTypeOf(newCustomer("x"))), Version: 1})
				if err != nil {
					return err
				}
				guard[0].Else = errSeen
				return u.Guard("", guard[0])
			})
		}
		require.NoError(t, handle("a"))
		require.Contains(t, w.db.texts[0], "message")
		require.ErrorIs(t, handle("b"), errSeen)
		require.Equal(t, []string{"account-a@1", "customer-message@1"}, w.things(t))
		require.Len(t, w.events(t), 1)
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// A15, A16: what fails after the commit neither runs the unit again nor raises
// its events again.
func TestAfterCommit_A15_A16(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		a := newAccount("a")
		runs := 0
		require.PanicsWithValue(t, "broken", func() {
			_ = w.units.Do(t.Context(), func(ctx context.Context) error {
				runs++
				u, err := uow.From(ctx)
				if err != nil {
					return err
				}
				u.AfterCommit(func(context.Context) { panic("broken") })
				a.Deposit(1)
				return w.save(ctx, a)
			})
		})
		require.Equal(t, 1, runs)
		require.Len(t, w.events(t), 1)
		require.EqualValues(t, 1, a.Version())
		w.saved(t, a)
		require.Len(t, w.events(t), 1)
		require.Equal(t, []string{"account-a@2"}, w.things(t))

		require.ErrorIs(t, w.units.Do(t.Context(), func(ctx context.Context) error {
			u, err := uow.From(ctx)
			if err != nil {
				return err
			}
			u.AfterCommit(func(context.Context) { t.Error("there was no commit") })
			return errGiveUp
		}), errGiveUp)
	})
}

func TestNew_AllMistakesAtOnce(t *testing.T) {
	_, err := uow.New(uow.Config{})
	require.ErrorContains(t, err, "Domain is missing")
	require.ErrorContains(t, err, "Providers is empty")

	p := openSQLite(t, "books")
	_, err = uow.New(uow.Config{
		Domain: bank, Providers: []uow.Provider{p, p, nil}, Broker: "kafka",
		External:   []outbox.Target{{}, {Broker: "kafka"}, {Broker: "partner", Events: []string{"Nothing"}}},
		Partitions: -1, MaxMessageBytes: -2, MaxRetries: -2,
	})
	for _, s := range []string{`two are called "books"`, "Providers[2] is nil", "has no Broker", `"kafka" is named twice`, "Nothing", "Partitions is -1", "MaxMessageBytes is -2", "MaxRetries is -2"} {
		require.ErrorContains(t, err, s)
	}

	units, err := uow.New(uow.Config{Domain: bank, Providers: []uow.Provider{p}})
	require.NoError(t, err)
	require.Equal(t, "default", units.Broker())
	require.Same(t, bank, units.Domain())
	require.Empty(t, units.External())
	require.Zero(t, units.Partitions())
	require.Len(t, units.Providers(), 1)
	found, err := units.Provider("")
	require.NoError(t, err)
	require.Equal(t, "books", found.Name())
	_, err = units.Provider("films")
	require.ErrorContains(t, err, fmt.Sprintf("%q", "books"))
}
