package repository_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/dbtest"
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

// Odd would lose what is in it.
type Odd struct {
	domain.Root
	Name   string
	secret string                    //nolint:unused // so it would be lost
	Lines  []struct{ colour string } //nolint:unused // so it would be lost
}

// Shelf keeps what it doesn't know.
type Shelf struct {
	domain.Root
	Books []struct{ Title string }
	Place string `json:"place"`
}

// Jar is declared as a document, and is none.
type Jar struct{ domain.Root }

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

// N2: JSON can't hold it, and what came back would be another text.
func TestDocument_N2_TextThatIsNotUTF8IsRefused(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		tallies := repository.New[*Tally](db.units)
		a := newTally("latin1")
		a.SetLabel("Müller")
		a.Label = "M\xfcller"
		require.ErrorContains(t, tallies.Save(t.Context(), a), "uow: tally latin1 can't be stored: Label is not UTF-8, which a text has to be in JSON: convert it, or make it a []byte")
		_, err := tallies.Get(t.Context(), "latin1")
		requireMissing(t, err, "latin1")
	})
}

func TestDocument_Unreadable(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		tallies := repository.New[*Tally](db.units)
		db.exec(t, `INSERT INTO documents (category, id, version, state) VALUES ('shop::tally', 'bad', 3, '{"Sum": "many"}')`)
		_, err := tallies.Get(t.Context(), "bad")
		require.ErrorContains(t, err, `repository: the document of tally "bad" can't be decoded as *repository_test.Tally: `)
		wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, "Sum", wrong.Field)
	})
}

// N2: what a save would lose isn't loaded, be it that a field was renamed or that a
// newer program has written it.
func TestDocument_N2_UnknownFieldsAreRefused(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		tallies := repository.New[*Tally](db.units)
		db.exec(t, `INSERT INTO documents (category, id, version, state) VALUES ('shop::tally', 'new', 3, '{"Sum": 5, "Since": "later", "Total": 5}')`)
		_, err := tallies.Get(t.Context(), "new")
		require.EqualError(t, err, `repository: tally "new": "Since", "Total" are not fields of repository_test.Tally in state version 1, and a save would lose that: raise domain.StateVersion with a domain.UpcastState, deploy the build that has written it, or declare domain.KeepUnknown() for fields of the tally itself`)
		unknown, ok := errors.AsType[*domain.UnknownFieldsError](err)
		require.True(t, ok)
		require.Equal(t, []string{"Since", "Total"}, unknown.Fields)
		require.Error(t, tallies.Update(t.Context(), "new", func(*Tally) error { return nil }))
	})
}

// N11: a document may say the same in other words than this program.
func TestDocument_N11_SpelledOtherwise(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		tallies := repository.New[*Tally](db.units)
		db.exec(t, `INSERT INTO documents (category, id, version, state) VALUES ('shop::tally', 'old', 3, '{"Parts": [5], "Sum": 5}')`)
		update := func(to int, version int64) {
			require.NoError(t, tallies.Update(t.Context(), "old", func(a *Tally) error {
				a.Sum = to
				return nil
			}))
			a, err := tallies.Get(t.Context(), "old")
			require.NoError(t, err)
			require.Equal(t, version, a.Version())
			require.Equal(t, to, a.Sum)
		}
		update(5, 3)
		update(6, 4) // without an event
		update(6, 4)
		update(5, 5)
	})
}

// N2: KeepUnknown writes back what a newer program has stored.
func TestDocument_N2_KeepUnknown(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		shelves := repository.New[*Shelf](db.units)
		db.exec(t, `INSERT INTO documents (category, id, version, state) VALUES ('shop::shelf', 'a', 3, '{"place": "hall", "Since": {"year": 12345678901234567890.10}, "Books": [], "by": "ann"}')`)
		for _, place := range []string{"attic", "cellar"} {
			require.NoError(t, shelves.Update(t.Context(), "a", func(s *Shelf) error {
				s.Place = place
				return nil
			}))
		}
		state := func() (state string) {
			require.NoError(t, db.provider.Reader().QueryRowContext(t.Context(), "SELECT state FROM documents WHERE id = 'a'").Scan(&state))
			return state
		}
		require.Equal(t, `{"Books":[],"place":"cellar","Since":{"year":12345678901234567890.10},"by":"ann"}`, state()) //nolint:testifylint // to the byte

		// An instance that is saved again keeps it too.
		s, err := shelves.Get(t.Context(), "a")
		require.NoError(t, err)
		for _, place := range []string{"yard", "shed"} {
			s.Place = place
			require.NoError(t, shelves.Save(t.Context(), s))
		}
		require.Contains(t, state(), `"place":"shed","Since":{"year":12345678901234567890.10}`)

		// What the structs in it don't have would be lost.
		db.exec(t, `UPDATE documents SET state = '{"Books": [{"Title": "x"}, {"Title": "y", "Isbn": "1"}], "by": "ann"}' WHERE id = 'a'`)
		_, err = shelves.Get(t.Context(), "a")
		require.ErrorContains(t, err, `shelf "a": "Books[1].Isbn" is not a field of repository_test.Shelf in state version 1`)
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
	for name, construct := range map[string]func(){
		"New":          func() { repository.New[*Tally](nil) },
		"Mapped":       func() { repository.Mapped(nil, basketMapping) },
		"EventSourced": func() { repository.EventSourced[*Ledger](nil) },
	} {
		panics("repository."+name+": the units of work are nil: make them with uow.New first", construct)
	}
	panics(`no provider "cellar"; it has ["default"]`, func() { repository.New[*Tally](units, repository.In("cellar")) })
	// N2: what JSON would lose, all at once.
	panics("repository.New: Odd.secret is unexported and would be lost: export it, tag it json:\"-\" if it needn't be kept, or give Odd MarshalJSON and UnmarshalJSON\n"+
		"repository.New: Odd.Lines.colour is unexported and would be lost: export it, tag it json:\"-\" if it needn't be kept, or give Odd.Lines MarshalJSON and UnmarshalJSON",
		func() { repository.New[*Odd](units) })
	panics("shop::jar is declared with domain.KeepUnknown(), domain.StateVersion, domain.UpcastState or domain.WriteState, which are about documents", func() { repository.Mapped(units, repository.Mapping[*Jar, basketRow]{}) })
	panics("HalfSealed has MarshalJSON but no UnmarshalJSON: give it both or neither", func() { repository.New[*HalfSealed](units) })
}

func TestFind_OnlyMapped(t *testing.T) {
	t.Parallel()
	units := openSQLite(t, "default").units
	_, err := repository.New[*Tally](units).Find(t.Context(), nil)
	require.ErrorContains(t, err, "repository.Mapped")
	_, err = repository.EventSourced[*Ledger](units).Find(t.Context(), nil)
	require.ErrorContains(t, err, "repository.Mapped")
}

// Whoever forgot to migrate and reads first is told what helps.
func TestGet_WithoutTables(t *testing.T) {
	postgres, _ := dbtest.Postgres(t)
	for name, p := range map[string]uow.Provider{"sqlite": dbtest.SQLite(t), "postgres": postgres} {
		units, err := uow.New(uow.Config{Domain: shop, Providers: []uow.Provider{p}})
		require.NoError(t, err)
		_, err = repository.New[*Tally](units).Get(t.Context(), "a")
		require.ErrorContains(t, err, "run engine.Migrate or `waybill migrate`", name)
	}
}
