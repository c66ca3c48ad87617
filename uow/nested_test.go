package uow_test

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

// A3: an inner unit joins the outer one, and lives and dies with it.
func TestNested_A3_Joins(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		a, b := newAccount("a"), newAccount("b")
		unit := func(end error) error {
			return w.units.Do(t.Context(), func(ctx context.Context) error {
				outer, err := uow.From(ctx)
				require.NoError(t, err)
				require.NoError(t, w.save(ctx, a))
				require.NoError(t, w.units.Do(ctx, func(ctx context.Context) error {
					inner, err := uow.From(ctx)
					require.NoError(t, err)
					require.Same(t, outer, inner)
					return w.save(ctx, b)
				}))
				require.Empty(t, w.things(t), "the end of the inner one commits nothing")
				return end
			})
		}
		a.Deposit(1)
		b.Deposit(1)
		require.ErrorIs(t, unit(errGiveUp), errGiveUp)
		w.nothing(t)
		require.NoError(t, unit(nil))
		require.Len(t, w.events(t), 2)
		require.Len(t, *w.wakes, 1)
	})
}

// A4, F-57: an inner failure can't be swallowed; nor can a panic.
func TestNested_A4_F57_InnerErrorDooms(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		for name, inner := range map[string]func(ctx context.Context) error{
			"error":   func(context.Context) error { return errGiveUp },
			"flushed": func(ctx context.Context) error { return errors.Join(uow.Flush(ctx), errGiveUp) },
			"panic":   func(context.Context) error { panic(errGiveUp) },
		} {
			a := newAccount("a")
			a.Deposit(1)
			err := w.units.Do(t.Context(), func(ctx context.Context) error {
				require.NoError(t, w.save(ctx, a))
				func() {
					defer func() { _ = recover() }()
					_ = w.units.Do(ctx, func(ctx context.Context) error {
						b := newAccount("b")
						b.Deposit(1)
						require.NoError(t, w.save(ctx, b))
						return inner(ctx)
					})
				}()
				_, doomed := errors.AsType[*uow.DoomedError](w.save(ctx, a))
				require.True(t, doomed, "nothing more can be done in it")
				return nil
			})
			_, doomed := errors.AsType[*uow.DoomedError](err)
			require.True(t, doomed, "%s: %v", name, err)
			if name != "panic" {
				require.ErrorIs(t, err, errGiveUp)
			}
			w.nothing(t)
		}
	})
}

// A5: after whatever end, the next unit is as good as new.
func TestNested_A5_NextUnit(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		for _, end := range []func(){func() {}, func() { panic("boom") }, runtime.Goexit} {
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				defer func() { _ = recover() }()
				_ = w.units.Do(context.Background(), func(ctx context.Context) error {
					return w.units.Do(ctx, func(ctx context.Context) error {
						_, err := uow.DB(ctx)
						end()
						return errors.Join(err, errGiveUp)
					})
				})
			}()
			<-ended
			w.nothing(t)
		}
		a := newAccount("a")
		a.Deposit(1)
		w.saved(t, a)
		require.Len(t, w.events(t), 1)
	})
}

func TestNested_OtherManagerIsRefused(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		other, err := uow.New(uow.Config{Domain: shop, Providers: []uow.Provider{w.db}})
		require.NoError(t, err)
		a := newAccount("a")
		a.Deposit(1)
		require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error {
			require.ErrorIs(t, other.Do(ctx, func(context.Context) error {
				t.Error("it ran")
				return nil
			}), uow.ErrOtherManager)
			return w.save(ctx, a)
		}))
		require.Len(t, w.events(t), 1)
	})
}

// two are units on two databases.
func two(t *testing.T, open providers) (w *world, second *spy, elsewhere store) {
	second = &spy{Provider: open(t, "archive")}
	w = newWorld(t, open, func(c *uow.Config) { c.Providers = append(c.Providers, second) })
	w.create(t, second)
	return w, second, store{provider: "archive"}
}

// Conformance: F-64.
func TestProviders_SecondIsRefused(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w, second, elsewhere := two(t, open)
		for name, touch := range map[string]func(ctx context.Context, u *uow.Unit) error{
			"save": func(ctx context.Context, u *uow.Unit) error { return elsewhere.save(ctx, newAccount("b")) },
			"read": func(ctx context.Context, u *uow.Unit) error { _, err := u.Read("archive"); return err },
			"DB":   func(ctx context.Context, u *uow.Unit) error { _, err := u.DB(ctx, "archive"); return err },
		} {
			err := w.units.Do(t.Context(), func(ctx context.Context) error {
				u, err := uow.From(ctx)
				if err != nil {
					return err
				}
				require.NoError(t, w.save(ctx, newAccount("a")))
				require.Error(t, touch(ctx, u), name)
				return nil
			})
			refused, ok := errors.AsType[*uow.ProvidersError](err)
			require.True(t, ok, "%s: %v", name, err)
			require.Equal(t, uow.ProvidersError{First: "default", Second: "archive"}, *refused)
			w.nothing(t)
		}
		require.Empty(t, rows(t, second))

		// Alone, the second is as good as the first.
		a := newAccount("a")
		a.Deposit(1)
		require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error { return elsewhere.save(ctx, a) }))
		require.Len(t, rows(t, second), 2)
		require.Equal(t, []string{"archive[default partner]"}, *w.wakes)
		require.Error(t, w.units.Do(t.Context(), func(ctx context.Context) error { return store{provider: "nowhere"}.save(ctx, a) }))
	})
}

// Conformance: F-64.
func TestAcrossProviders(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w, second, elsewhere := two(t, open)
		a, b := newAccount("a"), newAccount("b")
		unit := func(end error) error {
			return w.units.Do(t.Context(), func(ctx context.Context) error {
				return errors.Join(w.save(ctx, a), elsewhere.save(ctx, b), end)
			}, uow.AcrossProviders())
		}
		a.Deposit(1)
		b.Annotate("x")
		require.ErrorIs(t, unit(errGiveUp), errGiveUp)
		w.nothing(t)
		require.Empty(t, rows(t, second))

		require.NoError(t, unit(nil))
		require.Len(t, rows(t, w.db), 2)
		require.Len(t, rows(t, second), 1)
		require.Equal(t, []string{"default[default partner]", "archive[default]"}, *w.wakes)
		require.EqualValues(t, 1, a.Version())
		require.EqualValues(t, 1, b.Version())
	})
}

func TestAcrossProviders_Partial(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w, second, elsewhere := two(t, open)
		errLate := errors.New("too late")
		second.commit = func(uow.Session, func() error) error { return errLate }
		a, b := newAccount("a"), newAccount("b")
		a.Deposit(1)
		b.Deposit(1)
		runs := 0
		unit := func() error {
			return w.units.Do(t.Context(), func(ctx context.Context) error {
				runs++
				u, err := uow.From(ctx)
				if err != nil {
					return err
				}
				u.AfterCommit(func(context.Context) { t.Error("the unit has not committed") })
				return errors.Join(w.save(ctx, a), elsewhere.save(ctx, b))
			}, uow.AcrossProviders())
		}
		err := unit()
		partial, ok := errors.AsType[*uow.PartialCommitError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, []string{"default"}, partial.Committed)
		require.Equal(t, "archive", partial.Failed)
		require.ErrorIs(t, err, errLate)
		require.Equal(t, 1, runs)
		require.Len(t, rows(t, w.db), 2)
		require.Empty(t, rows(t, second))
		require.Equal(t, []string{"default[default partner]"}, *w.wakes, "what has committed can be published")
		require.EqualValues(t, 1, a.Version())
		require.EqualValues(t, 0, b.Version())

		// The first to commit fails: that is a failure like any other.
		w.db.commit = func(uow.Session, func() error) error { return errLate }
		err = unit()
		require.Equal(t, errLate, err)
		require.EqualValues(t, 1, a.Version())
		w.returned(t)
	})
}

func TestExternalTargets(t *testing.T) {
	w := newWorld(t, openSQLite, func(c *uow.Config) {
		c.Broker = "local"
		c.External = []outbox.Target{{Broker: "one"}, {Broker: "two", Events: []string{"Deposited"}}}
	})
	a := newAccount("a")
	a.Deposit(1)
	a.Annotate("x")
	require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error { return w.save(ctx, a) }))
	require.Equal(t, []string{"default[local one two]"}, *w.wakes)
	require.Len(t, rows(t, w.db), 4)
}

// An option that is nil is named, within an outer unit, too, where it would fall to nobody's notice.
func TestDo_AnOptionThatIsNil(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		nothing := func(context.Context) error { return nil }
		const want = "uow: Do: option 2 is nil: take it out"
		require.EqualError(t, w.units.Do(t.Context(), nothing, uow.Retries(1), nil), want)
		err := w.units.Do(t.Context(), func(ctx context.Context) error { return w.units.Do(ctx, nothing, uow.Retries(1), nil) })
		require.EqualError(t, err, want)
	})
}

// Who forgot the function hears of it, and an outer unit doesn't commit without what it was for.
func TestDo_WithoutAFunction(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		const want = "uow: Do was given nil instead of a function: give it one"
		require.ErrorContains(t, w.units.Do(t.Context(), nil), want)
		err := w.units.Do(t.Context(), func(ctx context.Context) error {
			require.ErrorContains(t, w.units.Do(ctx, nil), want)
			return nil
		})
		_, doomed := errors.AsType[*uow.DoomedError](err)
		require.True(t, doomed, "%v", err)
		require.ErrorContains(t, err, want)
		w.nothing(t)
	})
}
