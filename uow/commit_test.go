package uow_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/rootstate"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

// S4-06, F-27: state, then rows, then COMMIT, and only then the wake-up.
func TestCommit_S406_F27_Order(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		var seen []string
		defer w.units.OnCommit(func(string, []outbox.Poke) []outbox.Poke { seen = w.events(t); return nil })()
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
		require.Contains(t, w.db.texts[2], "INSERT INTO outbox_")
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
		cancel := w.units.OnCommit(func(string, []outbox.Poke) []outbox.Poke { called++; return nil })
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
		defer units.OnCommit(func(string, []outbox.Poke) []outbox.Poke { t.Error("woken for nothing"); return nil })()
		a := newAccount("a")
		a.Deposit(1)
		require.NoError(t, units.Do(t.Context(), func(ctx context.Context) error { return store{}.save(ctx, a) }))
		require.EqualValues(t, 1, a.Version())
		require.Empty(t, rootstate.Of(a).Raised)

		require.NoError(t, outboxdb.Migrate(t.Context(), p.DB(), 0))
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
			_, err = db.ExecContext(ctx, "INSERT INTO things VALUES ('bank::account', 'by-hand', 1, '{}', '')")
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

// A15, A16, D13: what fails after the commit neither runs the unit again nor raises
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
		_, unsaved := errors.AsType[*uow.UnsavedError](w.units.Do(t.Context(), func(ctx context.Context) error {
			u, err := uow.From(ctx)
			if err != nil {
				return err
			}
			u.AfterCommit(func(context.Context) { t.Error("the commit failed") })
			err = w.save(ctx, a)
			a.Deposit(1)
			return err
		}))
		require.True(t, unsaved)
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
		Partitions: -1, MaxMessageBytes: -2, MaxRetries: -2, Lease: -time.Second,
	})
	for _, s := range []string{`two are called "books"`, "Providers[2] is nil", "has no name: set Broker", `"kafka" is named twice`, "Nothing", "Partitions is -1", "MaxMessageBytes is -2", "MaxRetries is -2", "Lease is -1s"} {
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
