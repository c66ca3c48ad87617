package history_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/history"
	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/internal/rights"
	"github.com/waybill-go/waybill/internal/rights/rightstest"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var library = domain.MustNew("library",
	domain.Aggregate[*Book]("book", domain.Event[Acquired](), domain.Event[Sold](domain.Alias("Library.Gone"))),
	domain.Aggregate[*Loan]("loan", domain.Event[Placed](), domain.Event[Returned]()),
	domain.Foreign[Charged]("Billing.Charged.v1"),
	domain.Command[Remind](domain.KeyedBy("loan_id")),
)

type (
	// Book is kept as a document.
	Book struct {
		domain.Root
		Title string
	}
	// Loan is kept as its events.
	Loan struct {
		domain.Root
		Open bool
	}
	Acquired struct{ Title string }
	Sold     struct{}
	Placed   struct{ Book string }
	Returned struct{}
	Charged  struct{}
	Remind   struct {
		LoanID string `json:"loan_id"`
	}
)

func (l *Loan) Apply(event any) { _, l.Open = event.(Placed) }

func (b *Book) Validate() error {
	if b.Title == "" {
		return errors.New("it has no title")
	}
	return nil
}

func newBook(id string) *Book {
	b := &Book{Root: domain.RootWithID(id), Title: id}
	b.Raise(Acquired{Title: id})
	return b
}

func newLoan(id string) *Loan {
	l := &Loan{Root: domain.RootWithID(id)}
	domain.Record(l, Placed{Book: "b"})
	return l
}

type world struct {
	units *uow.Manager
	books *repository.Repository[*Book]
	loans *repository.Repository[*Loan]
}

func openWorld(t *testing.T, p uow.Provider, change ...func(*uow.Config)) *world {
	t.Helper()
	cfg := uow.Config{Domain: library, Providers: []uow.Provider{p}, History: true}
	for _, c := range change {
		c(&cfg)
	}
	units, err := uow.New(cfg)
	require.NoError(t, err)
	return &world{units, repository.New[*Book](units), repository.EventSourced[*Loan](units)}
}

func each(t *testing.T, f func(t *testing.T, p uow.Provider)) {
	t.Parallel()
	migrated := func(t *testing.T, p uow.Provider) {
		t.Helper()
		units, err := uow.New(uow.Config{Domain: library, Providers: []uow.Provider{p}, History: true})
		require.NoError(t, err)
		require.NoError(t, engine.Migrate(t.Context(), units))
	}
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		p := dbtest.SQLite(t)
		migrated(t, p)
		f(t, p)
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		p, cfg := dbtest.Postgres(t)
		migrated(t, p)
		f(t, rightstest.As(t, p, cfg, migrate.App, rights.Features()...))
	})
}

// read is what a range has, as "loan-l@1.1 Placed".
func (w *world) read(t *testing.T, r history.Range) (all []string) {
	t.Helper()
	for e, err := range history.Read(t.Context(), w.units, r) {
		require.NoError(t, err)
		all = append(all, name(e))
	}
	return all
}

func name(e history.Event) string {
	typ, err := library.EventNamed(e.Type)
	if err != nil {
		return e.Type
	}
	return fmt.Sprintf("%s-%s@%s %s", e.Aggregate, e.AggregateID, e.Sequence, typ.ShortName())
}

// S2-40: each event is there once, in the order of its aggregate's versions, whichever
// way the aggregate is kept.
func TestRead_HasTheEventsOfAllAggregatesInOrder(t *testing.T) {
	each(t, func(t *testing.T, p uow.Provider) {
		w := openWorld(t, p)
		ctx := domain.WithOrigin(t.Context(), domain.Origin{CorrelationID: "c", TenantID: "t"})
		require.Empty(t, w.read(t, history.Range{}))
		_, ok, err := history.Begin(ctx, w.units)
		require.NoError(t, err)
		require.False(t, ok)
		book, loan := newBook("b"), newLoan("l")
		require.NoError(t, w.units.Do(ctx, func(ctx context.Context) error {
			require.NoError(t, command.Send(ctx, Remind{LoanID: "l"}))
			require.NoError(t, w.books.Save(ctx, book))
			return w.loans.Save(ctx, loan)
		}))
		head, err := history.Head(ctx, w.units)
		require.NoError(t, err)
		domain.Record(loan, Returned{})
		require.NoError(t, w.loans.Save(ctx, loan))
		book.Raise(Sold{})
		book.Raise(Acquired{Title: "again"})
		require.NoError(t, w.books.Save(ctx, book))
		require.NoError(t, w.loans.Remove(ctx, loan)) // leaves a mark that is no event
		all := []string{"loan-l@1.1 Placed", "book-b@1.1 Acquired", "loan-l@2.1 Returned", "book-b@2.1 Sold", "book-b@2.2 Acquired"}
		require.Equal(t, all, w.read(t, history.Range{}))
		require.Equal(t, all[2:], w.read(t, history.Range{After: head}))
		require.Equal(t, all[:2], w.read(t, history.Range{Until: head}))
		require.Equal(t, []string{all[0], all[3]}, w.read(t, history.Range{Types: []string{"Placed", "Sold"}}))
		require.Equal(t, all[3:4], w.read(t, history.Range{Types: []string{"Library.Gone", "Billing.Charged"}}))
		require.Equal(t, []string{all[0], all[2]}, w.read(t, history.Range{Categories: []string{"library::loan"}}))
		for _, err := range history.Read(ctx, w.units, history.Range{Types: []string{"Lost"}}) {
			require.ErrorContains(t, err, `context library declares no event "Lost"`)
		}
		for _, err := range history.Read(ctx, w.units, history.Range{Provider: "other"}) {
			require.ErrorContains(t, err, `no provider "other"`)
		}

		first, ok, err := history.Begin(ctx, w.units)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, all[0], name(first))
		require.WithinDuration(t, time.Now(), first.Time, time.Minute)
		first.ID, first.Time, first.Position = "", time.Time{}, 0
		require.Equal(t, history.Event{Data: []byte(`{"Book":"b"}`), Metadata: domain.Metadata{
			Origin: domain.Origin{CorrelationID: "c", TenantID: "t"}, Type: "Library.Placed.v1",
			Stream: "library::loan-l", Category: "library::loan", Context: "library", Aggregate: "loan", AggregateID: "l", Version: 1, Sequence: "1.1",
		}}, first)
	})
}

// Which events are kept is the database's to say, for all programs of the context; without
// an outbox each goes by its own.
func TestHistory_OffKeepsWhatAggregatesAreMadeOf(t *testing.T) {
	each(t, func(t *testing.T, p uow.Provider) {
		without := func(c *uow.Config) { c.History, c.NoOutbox = false, true }
		w := openWorld(t, p, without)
		require.NoError(t, w.books.Save(t.Context(), newBook("b")))
		require.NoError(t, w.loans.Save(t.Context(), newLoan("l")))
		require.Equal(t, []string{"loan-l@1.1 Placed"}, w.read(t, history.Range{}))
		w = openWorld(t, p, func(c *uow.Config) { c.NoOutbox = true })
		require.NoError(t, w.books.Save(t.Context(), newBook("c")))
		w = openWorld(t, p, func(c *uow.Config) { c.History = false })
		require.NoError(t, w.books.Save(t.Context(), newBook("d")))
		require.Equal(t, []string{"loan-l@1.1 Placed", "book-c@1.1 Acquired", "book-d@1.1 Acquired"}, w.read(t, history.Range{}))
	})
}

// A history that is turned on in a deployment that goes on begins for all programs at once,
// those that don't have the setting among them: no aggregate has a hole in it.
// Conformance: S2-40.
func TestHistory_BeginsForAllProgramsAtOnce(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) uow.Provider{
		"SQLite":     func(t *testing.T) uow.Provider { return dbtest.SQLite(t) },
		"PostgreSQL": func(t *testing.T) uow.Provider { p, _ := dbtest.Postgres(t); return p },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := open(t)
			old := openWorld(t, p, func(c *uow.Config) { c.History = false })
			require.NoError(t, engine.Migrate(t.Context(), old.units))
			logs := &bytes.Buffer{}
			updated := openWorld(t, p, func(c *uow.Config) { c.Logger = slog.New(slog.NewTextHandler(logs, nil)) })
			book := newBook("b")
			require.NoError(t, old.books.Save(t.Context(), book))
			sell := func(w *world) {
				book.Raise(Sold{})
				require.NoError(t, w.books.Save(t.Context(), book))
			}
			sell(updated)
			sell(updated)
			require.Empty(t, updated.read(t, history.Range{}), "the other program wouldn't keep what follows")
			require.Equal(t, 1, strings.Count(logs.String(), "events are not kept"), logs)
			require.ErrorContains(t, engine.Check(t.Context(), updated.units), "context library keeps no history yet")

			begun := make(chan error, 1)
			go func() { begun <- engine.Migrate(t.Context(), updated.units) }()
			turns, n := []*world{old, updated}, 0
			waittest.Until(t, func() bool {
				sell(turns[n%2])
				n++
				kept, err := history.Head(t.Context(), updated.units)
				require.NoError(t, err)
				return kept > 3
			})
			require.NoError(t, <-begun)
			sell(old)
			sell(updated)
			var versions []int64
			for e, err := range history.Read(t.Context(), updated.units, history.Range{}) {
				require.NoError(t, err)
				versions = append(versions, e.Version)
			}
			require.Greater(t, len(versions), 5)
			for i, v := range versions {
				require.Equal(t, book.Version()-int64(len(versions)-1-i), v, "%v", versions)
			}
			require.NoError(t, engine.Check(t.Context(), updated.units, old.units))
			require.NoError(t, engine.Migrate(t.Context(), old.units, updated.units))
		})
	}
}

// An event is kept if and only if its unit commits.
func TestHistory_CommitsWithTheState(t *testing.T) {
	each(t, func(t *testing.T, p uow.Provider) {
		w := openWorld(t, p)
		err := w.units.Do(t.Context(), func(ctx context.Context) error {
			require.NoError(t, w.books.Save(ctx, newBook("b")))
			require.NoError(t, uow.Flush(ctx))
			return context.Canceled
		})
		require.ErrorIs(t, err, context.Canceled)
		require.Empty(t, w.read(t, history.Range{}))
		b := newBook("b")
		require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error {
			require.NoError(t, w.books.Save(ctx, b))
			require.NoError(t, uow.Flush(ctx))
			b.Raise(Sold{})
			return w.books.Save(ctx, b)
		}))
		require.Equal(t, []string{"book-b@1.1 Acquired", "book-b@2.1 Sold"}, w.read(t, history.Range{}))
	})
}

// Two aggregates of one id are two.
func TestHistory_A12_D14_SameIDTwoTypes(t *testing.T) {
	each(t, func(t *testing.T, p uow.Provider) {
		w := openWorld(t, p)
		require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error {
			require.NoError(t, w.books.Save(ctx, newBook("x")))
			return w.loans.Save(ctx, newLoan("x"))
		}))
		require.Equal(t, []string{"loan-x@1.1 Placed", "book-x@1.1 Acquired"}, w.read(t, history.Range{}))
	})
}

// What breaks an invariant leaves no event, nor does the rest of its unit.
func TestHistory_A14_D15_Invariant(t *testing.T) {
	each(t, func(t *testing.T, p uow.Provider) {
		w := openWorld(t, p)
		broken := newBook("broken")
		broken.Title = ""
		err := w.units.Do(t.Context(), func(ctx context.Context) error {
			require.NoError(t, w.books.Save(ctx, newBook("b")))
			require.NoError(t, w.loans.Save(ctx, newLoan("l")))
			return w.books.Save(ctx, broken)
		})
		require.ErrorAs(t, err, new(*uow.InvalidError))
		require.Empty(t, w.read(t, history.Range{}))
	})
}

func TestRead_FollowsUntilItsContextEnds(t *testing.T) {
	each(t, func(t *testing.T, p uow.Provider) {
		w := openWorld(t, p)
		require.NoError(t, w.books.Save(t.Context(), newBook("0")))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var got []string
		for e, err := range history.Read(ctx, w.units, history.Range{Follow: true, Categories: []string{"library::book"}}) {
			if err != nil {
				require.ErrorIs(t, err, context.Canceled)
				continue
			}
			if got = append(got, e.AggregateID); len(got) == 3 {
				cancel()
				continue
			}
			require.NoError(t, w.loans.Save(t.Context(), newLoan(fmt.Sprint(len(got)))))
			require.NoError(t, w.books.Save(t.Context(), newBook(fmt.Sprint(len(got)))))
		}
		require.Equal(t, []string{"0", "1", "2"}, got)
	})
}

// What is to be read may end behind the last event: a reader that doesn't follow waits for nothing
// that comes.
func TestRead_EndsWithWhatIsThereThoughMoreIsAskedFor(t *testing.T) {
	each(t, func(t *testing.T, p uow.Provider) {
		w := openWorld(t, p)
		require.NoError(t, w.books.Save(t.Context(), newBook("a")))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var got []string
		for e, err := range history.Read(ctx, w.units, history.Range{Until: 1_000_000}) {
			require.NoError(t, err)
			got = append(got, e.AggregateID)
		}
		require.Equal(t, []string{"a"}, got)
	})
}

func TestRead_EndsWhereItsLoopEnds(t *testing.T) {
	each(t, func(t *testing.T, p uow.Provider) {
		w := openWorld(t, p)
		for i := range 3 {
			require.NoError(t, w.books.Save(t.Context(), newBook(fmt.Sprint(i))))
		}
		var got []string
		for e, err := range history.Read(t.Context(), w.units, history.Range{Follow: true}) {
			require.NoError(t, err)
			if got = append(got, e.AggregateID); len(got) == 2 {
				break
			}
		}
		require.Equal(t, []string{"0", "1"}, got)
	})
}
