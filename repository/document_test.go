package repository_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

// Sealed keeps its state to itself and says how it is stored.
type Sealed struct {
	domain.Root
	secret string
}

func (s *Sealed) MarshalJSON() ([]byte, error) {
	switch s.secret {
	case "unmarshalable":
		return nil, errBroken
	case "binary":
		return []byte("\"\xff\""), nil
	}
	return fmt.Appendf(nil, `{"z": 12345678901234567890.10, "a": %q}`, s.secret), nil
}

func (s *Sealed) UnmarshalJSON(b []byte) error {
	var v struct{ A string }
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	*s = Sealed{Root: domain.NewRoot(), secret: v.A} // whose identity must not win
	return nil
}

// HalfSealed can be written and not read.
type HalfSealed struct {
	domain.Root
	secret string
}

func (s *HalfSealed) MarshalJSON() ([]byte, error) { return json.Marshal(s.secret) }

// Odd would always be {}.
type Odd struct {
	domain.Root
	_ string
}

func TestDocument_ItsOwnJSON(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		sealed := repository.New[*Sealed](db.units)
		s := &Sealed{Root: domain.RootWithID("s"), secret: "mine"}
		require.NoError(t, sealed.Save(t.Context(), s))
		got, err := sealed.Get(t.Context(), "s")
		require.NoError(t, err)
		require.Equal(t, "mine", got.secret)
		require.Equal(t, "s", got.ID())
		require.EqualValues(t, 1, got.Version())

		// F-36: keys in their order, numbers as they were.
		var state string
		require.NoError(t, db.provider.Reader().QueryRowContext(t.Context(), "SELECT state FROM documents").Scan(&state))
		require.Equal(t, `{"z":12345678901234567890.10,"a":"mine"}`, state) //nolint:testifylint // to the byte

		for _, secret := range []string{"unmarshalable", "binary"} {
			bad := &Sealed{Root: domain.RootWithID(secret), secret: secret}
			require.ErrorContains(t, sealed.Save(t.Context(), bad), "uow: sealed "+secret+" can't be stored: ")
			_, err = sealed.Get(t.Context(), secret)
			requireMissing(t, err, secret)
		}
	})
}

func TestDocument_NULInState(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		tallies := repository.New[*Tally](db.units)
		a := newTally("nul")
		a.SetLabel("a\x00b")
		require.NoError(t, tallies.Save(t.Context(), a))
		got, err := tallies.Get(t.Context(), "nul")
		require.NoError(t, err)
		require.Equal(t, "a\x00b", got.Label)
	})
}

func TestDocument_Unreadable(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		tallies := repository.New[*Tally](db.units)
		db.exec(t, `INSERT INTO documents (category, id, version, state) VALUES ('shop::tally', 'bad', 3, '{"Sum": "many"}')`)
		_, err := tallies.Get(t.Context(), "bad")
		require.ErrorContains(t, err, "repository: the document of shop::tally bad can't be read: ")
		wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, "Sum", wrong.Field)
	})
}

func TestDocument_UnknownFieldsAreLeft(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		tallies := repository.New[*Tally](db.units)
		db.exec(t, `INSERT INTO documents (category, id, version, state) VALUES ('shop::tally', 'new', 3, '{"Sum": 5, "Since": "later"}')`)
		a, err := tallies.Get(t.Context(), "new")
		require.NoError(t, err)
		require.Equal(t, 5, a.Sum)
		require.EqualValues(t, 3, a.Version())
	})
}

// A12, D14: what has the same id is not the same aggregate.
func TestSameIDTwoAggregates_A12_D14(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		tallies := repository.New[*Tally](db.units)
		baskets := repository.Mapped(db.units, basketMapping)
		ledgers := repository.EventSourced[*Ledger](db.units)
		tally, basket, ledger := newTally("1"), newBasket("1"), newLedger("1")
		tally.Add(1)
		basket.Add(2)
		ledger.Add(3)
		// A9: kinds of all sorts in one unit of work.
		require.NoError(t, db.units.Do(t.Context(), func(ctx context.Context) error {
			return errors.Join(tallies.Save(ctx, tally), baskets.Save(ctx, basket), ledgers.Save(ctx, ledger))
		}))
		var streams []string
		ids := map[string]bool{}
		for _, r := range db.outbox(t, "") {
			streams = append(streams, r.Stream)
			ids[r.MessageID] = true
			require.EqualValues(t, 1, r.AggregateVersion)
		}
		require.Equal(t, []string{"shop::tally-1", "shop::basket-1", "shop::ledger-1"}, streams)
		require.Len(t, ids, 3)

		gotTally, err := tallies.Get(t.Context(), "1")
		require.NoError(t, err)
		gotBasket, err := baskets.Get(t.Context(), "1")
		require.NoError(t, err)
		gotLedger, err := ledgers.Get(t.Context(), "1")
		require.NoError(t, err)
		require.Equal(t, []int{1, 2, 3}, []int{gotTally.Total(), gotBasket.Total(), gotLedger.Total()})

		// A conflict of one takes the others with it.
		require.NoError(t, tallies.Update(t.Context(), "1", func(a *Tally) error { a.Add(1); return nil }))
		gotTally.Add(1)
		gotBasket.Add(1)
		gotLedger.Add(1)
		requireConflict(t, db.units.Do(t.Context(), func(ctx context.Context) error {
			return errors.Join(tallies.Save(ctx, gotTally), baskets.Save(ctx, gotBasket), ledgers.Save(ctx, gotLedger))
		}), "1", 1)
		require.Len(t, db.outbox(t, ""), 4)
		gotLedger, err = ledgers.Get(t.Context(), "1")
		require.NoError(t, err)
		require.Equal(t, 3, gotLedger.Total())
	})
}

func TestIn(t *testing.T) {
	t.Parallel()
	main, archive := openSQLite(t, "main"), openSQLite(t, "archive")
	units := newUnits(t, uow.Config{Providers: []uow.Provider{main.provider, archive.provider}})
	old := repository.New[*Tally](units, repository.In("archive"))
	ledgers := repository.EventSourced[*Ledger](units)
	a := newTally("old")
	a.Add(1)
	require.NoError(t, old.Save(t.Context(), a))
	_, err := old.Get(t.Context(), "old")
	require.NoError(t, err)
	_, err = repository.New[*Tally](units).Get(t.Context(), "old")
	requireMissing(t, err, "old")
	require.Empty(t, main.outbox(t, ""))
	require.Len(t, archive.outbox(t, ""), 1)

	err = units.Do(t.Context(), func(ctx context.Context) error {
		l := newLedger("l")
		l.Add(1)
		a.Add(1)
		return errors.Join(ledgers.Save(ctx, l), old.Save(ctx, a))
	})
	_, ok := errors.AsType[*uow.ProvidersError](err)
	require.True(t, ok, "%v", err)
}

func TestConstructorsPanic(t *testing.T) {
	t.Parallel()
	units := openSQLite(t, "default").units
	elsewhere := domain.MustNew("elsewhere")
	strangers, err := uow.New(uow.Config{Domain: elsewhere, Providers: units.Providers()})
	require.NoError(t, err)

	panics := func(want string, construct func()) {
		t.Helper()
		defer func() {
			t.Helper()
			err, _ := recover().(error)
			require.ErrorContains(t, err, want)
		}()
		construct()
	}
	const undeclared = "domain elsewhere: *repository_test.%[1]s is not declared; add domain.Aggregate[*repository_test.%[1]s](…)"
	panics("repository.New: "+fmt.Sprintf(undeclared, "Tally"), func() { repository.New[*Tally](strangers) })
	panics("repository.Mapped: "+fmt.Sprintf(undeclared, "Basket"), func() { repository.Mapped(strangers, basketMapping) })
	panics("repository.EventSourced: "+fmt.Sprintf(undeclared, "Ledger"), func() { repository.EventSourced[*Ledger](strangers) })
	panics(`no provider "cellar"; it has ["default"]`, func() { repository.New[*Tally](units, repository.In("cellar")) })
	panics("*repository_test.Odd has no exported field, so its document would always be {}: give it MarshalJSON and UnmarshalJSON, or use repository.Mapped or repository.EventSourced",
		func() { repository.New[*Odd](units) })
	panics("*repository_test.HalfSealed has MarshalJSON but no UnmarshalJSON: give it both or neither", func() { repository.New[*HalfSealed](units) })
}

func TestFind_OnlyMapped(t *testing.T) {
	t.Parallel()
	units := openSQLite(t, "default").units
	_, err := repository.New[*Tally](units).Find(t.Context(), nil)
	require.ErrorContains(t, err, "repository.Mapped")
	_, err = repository.EventSourced[*Ledger](units).Find(t.Context(), nil)
	require.ErrorContains(t, err, "repository.Mapped")
}
