package historyverbs_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/history"
	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/internal/historydb"
	"github.com/waybill-go/waybill/internal/historyverbs"
	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/rights"
	"github.com/waybill-go/waybill/internal/rights/rightstest"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/projection"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var library = domain.MustNew("library",
	domain.Aggregate[*Book]("book", domain.Event[Noted](domain.Published())),
	domain.Aggregate[*Van]("van", domain.Event[Moved](domain.OrderedBy(func(e Moved) string { return e.Shelf }))),
	domain.Aggregate[*Loan]("loan", domain.Event[Placed]()),
	domain.Command[Remind](domain.KeyedBy("loan_id")),
)

type (
	// Book is kept as a document.
	Book struct{ domain.Root }
	Van  struct{ domain.Root }
	// Loan is kept as its events.
	Loan  struct{ domain.Root }
	Noted struct{ Text string }
	Moved struct {
		Shelf string `json:"shelf"`
	}
	Placed struct{}
	Remind struct {
		LoanID string `json:"loan_id"`
	}
)

func (*Loan) Apply(any) {}

type world struct {
	t     *testing.T
	owner uow.Provider // of the tables
	p     uow.Provider
	units *uow.Manager
	books *repository.Repository[*Book]
	loans *repository.Repository[*Loan]
}

// each is a context that has no history yet, as an engine's role sees it.
func each(t *testing.T, f func(t *testing.T, w *world)) {
	t.Parallel()
	open := func(t *testing.T, p uow.Provider, as func() uow.Provider) {
		t.Helper()
		units, err := uow.New(uow.Config{Domain: library, Providers: []uow.Provider{p}})
		require.NoError(t, err)
		require.NoError(t, engine.Migrate(t.Context(), units))
		owner := p
		p = as()
		units, err = uow.New(uow.Config{Domain: library, Providers: []uow.Provider{p}})
		require.NoError(t, err)
		f(t, &world{t, owner, p, units, repository.New[*Book](units), repository.EventSourced[*Loan](units)})
	}
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		p := dbtest.SQLite(t)
		open(t, p, func() uow.Provider { return p })
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		p, cfg := dbtest.Postgres(t)
		open(t, p, func() uow.Provider { return rightstest.As(t, p, cfg, migrate.Engine, rights.Features()...) })
	})
}

func (w *world) exec(query string, args ...any) {
	w.t.Helper()
	_, err := w.owner.DB().ExecContext(w.t.Context(), query, args...)
	require.NoError(w.t, err)
}

// keeps has the history begin, as nobody else writes.
func (w *world) keeps() {
	w.t.Helper()
	w.exec(`UPDATE outbox_settings SET value = '{"broker": "default", "external": [], "history": "on"}' WHERE name = 'targets:library'`)
	units, err := uow.New(uow.Config{Domain: library, Providers: []uow.Provider{w.p}, History: true})
	require.NoError(w.t, err)
	w.units, w.books, w.loans = units, repository.New[*Book](units), repository.EventSourced[*Loan](units)
}

// note saves a book with so many more events.
func (w *world) note(b *Book, texts ...string) {
	w.t.Helper()
	for _, text := range texts {
		b.Raise(Noted{Text: text})
	}
	require.NoError(w.t, w.books.Save(w.t.Context(), b))
}

func (w *world) read() (all []history.Event) {
	w.t.Helper()
	for e, err := range history.Read(w.t.Context(), w.units, history.Range{}) {
		require.NoError(w.t, err)
		all = append(all, e)
	}
	return all
}

func places(events []history.Event) (all []string) {
	for _, e := range events {
		all = append(all, e.AggregateID+"@"+e.Sequence)
	}
	return all
}

func (w *world) imports(i historyverbs.Import) (historydb.Imported, error) {
	i.Context, i.Actor = "library", "ada"
	return i.Run(w.t.Context(), w.p)
}

// begins adds a projection that has come to a position.
func (w *world) begins(name string, position int64) {
	w.t.Helper()
	w.exec("INSERT INTO projections (projection, build, version, context, status, tables) VALUES (?, 1, 1, 'library', 'live', '{}')", name)
	w.exec("INSERT INTO projection_positions (projection, build, shard, position) VALUES (?, 1, 0, ?)", name, position)
}

// is asks the database a question.
func (w *world) is(query string) (yes bool) {
	w.t.Helper()
	require.NoError(w.t, w.p.DB().NewRaw(query).Scan(w.t.Context(), &yes))
	return yes
}

func newBook(id string) *Book { return &Book{Root: domain.RootWithID(id)} }

// What was raised before the history began comes before all else, each once, in its
// aggregate's order, with all that is known of it.
// Conformance: S2-40.
func TestImport_WhatIsStillInTheOutbox(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		_, err := w.imports(historyverbs.Import{})
		require.ErrorContains(t, err, "the database keeps no history of context library: set uow.Config.History")
		ctx := domain.WithOrigin(t.Context(), domain.Origin{CorrelationID: "c", CausationID: "k", TenantID: "t", Extensions: map[string]string{"x": "y"}})
		b, l := newBook("b"), &Loan{Root: domain.RootWithID("l")}
		require.NoError(t, w.units.Do(ctx, func(ctx context.Context) error {
			require.NoError(t, command.Send(ctx, Remind{LoanID: "l"}))
			b.Raise(Noted{Text: "it's \\ $1 ? \u0000 ż"})
			v := &Van{Root: domain.RootWithID("v")}
			v.Raise(Moved{Shelf: "s"})
			require.NoError(t, repository.New[*Van](w.units).Save(ctx, v))
			domain.Record(l, Placed{})
			return errors.Join(w.books.Save(ctx, b), w.loans.Save(ctx, l))
		}))
		w.note(b, "2")
		w.note(newBook("c"), "1")
		w.keeps()
		w.note(b, "3")

		found, err := w.imports(historyverbs.Import{DryRun: true})
		require.NoError(t, err)
		require.EqualValues(t, 4, found.Events)
		require.Equal(t, []string{"l@1.1", "b@3.1"}, places(w.read()))
		done, err := engine.ImportHistory(t.Context(), w.units, "ada")
		require.NoError(t, err)
		require.WithinDuration(t, found.Earliest, done.Earliest, time.Millisecond)
		require.Equal(t, engine.ImportedHistory{Events: 4, Earliest: done.Earliest}, done)
		all := w.read()
		require.Equal(t, []string{"b@1.1", "v@1.1", "b@2.1", "c@1.1", "l@1.1", "b@3.1"}, places(all))
		for i, e := range all[:4] {
			require.EqualValues(t, i-4, e.Position)
		}
		first, second := all[0], all[1]
		require.Equal(t, done.Earliest, first.Time)
		require.JSONEq(t, `{"Text": "it's \\ $1 ? \u0000 ż"}`, string(first.Data))
		require.Equal(t, domain.Origin{CorrelationID: "c", CausationID: "k", TenantID: "t", Extensions: map[string]string{"x": "y"}}, first.Origin)
		require.Equal(t, []any{"Library.Noted.v1", "library::book-b", "library::book", "library", "book", int64(1)}, []any{first.Type, first.Stream, first.Category, first.Context, first.Aggregate, first.Version})
		page, _, err := historydb.Between(t.Context(), w.p.DB(), historydb.Filter{}, second.Position-1, second.Position, 1)
		require.NoError(t, err)
		require.Equal(t, "s", page[0].Key)

		done, err = engine.ImportHistory(t.Context(), w.units, "ada")
		require.NoError(t, err)
		require.Zero(t, done, "all is there")
		var rows int
		require.NoError(t, w.p.DB().NewRaw("SELECT sum(rows) FROM outbox_actions WHERE action = 'history-import' AND actor = 'ada'").Scan(t.Context(), &rows))
		require.Equal(t, 4, rows)
	})
}

// What was raised while the context had another own broker is brought in as well.
func TestImport_AnotherOwnBroker(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		b := newBook("b")
		w.note(b, "1")
		w.exec("DELETE FROM outbox_queue") // it is published
		require.NoError(t, outboxdb.SetTargets(t.Context(), w.owner.DB(), "library", outbox.Targets{Broker: "second"}, "ada"))
		moved, err := uow.New(uow.Config{Domain: library, Providers: []uow.Provider{w.p}, Broker: "second"})
		require.NoError(t, err)
		b.Raise(Noted{Text: "2"})
		require.NoError(t, repository.New[*Book](moved).Save(t.Context(), b))
		w.exec(`UPDATE outbox_settings SET value = '{"broker": "second", "external": [], "history": "on"}' WHERE name = 'targets:library'`)
		found, err := w.imports(historyverbs.Import{DryRun: true})
		require.NoError(t, err)
		require.EqualValues(t, 2, found.Events)
		_, err = w.imports(historyverbs.Import{})
		require.NoError(t, err)
		require.Equal(t, []string{"b@1.1", "b@2.1"}, places(w.read()))
	})
}

// However far it is, what is there is the end of each aggregate's past; what was left off is
// found when it runs again.
// Conformance: S2-40.
func TestImport_EndedInTheMiddle(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		var want []string
		b := newBook("b")
		for version := range 3 {
			texts := make([]string, 400)
			w.note(b, texts...)
			for n := range texts {
				want = append(want, fmt.Sprintf("b@%d.%d", version+1, n+1))
			}
		}
		w.keeps()
		w.begins("loans", math.MinInt64)
		ctx, cancel := context.WithCancel(t.Context())
		_, err := historyverbs.Import{Context: "library", Actor: "ada", Progress: func(historydb.Imported) { cancel() }}.Run(ctx, w.p)
		require.EqualError(t, err, "history: import of context library: it ended early, with 500 events imported; run it again for the others within 50s, for which projections that have read nothing yet wait: context canceled")
		require.Equal(t, want[700:], places(w.read()))
		waits := func() bool {
			builds, err := projection.List(t.Context(), w.p)
			require.NoError(t, err)
			return builds[0].Fed
		}
		require.True(t, waits(), "otherwise it would begin, and what is left couldn't be imported any more")
		w.note(newBook("new"), "1")
		done, err := w.imports(historyverbs.Import{})
		require.NoError(t, err)
		require.EqualValues(t, 700, done.Events)
		require.False(t, waits())
		require.Equal(t, append(want, "new@1.1"), places(w.read()))
	})
}

// Who has read on would never see it. Who waits at the beginning begins anew: what it read
// without it has no effect.
func TestImport_AndProjections(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.note(newBook("b"), "1")
		w.keeps()
		w.begins("loans", 7)
		_, err := w.imports(historyverbs.Import{})
		require.ErrorContains(t, err, "projection loans, build 1, has read the history beyond its beginning")
		require.ErrorContains(t, err, "`waybill projections retire loans`")
		require.Empty(t, w.read())
		w.exec("UPDATE projection_positions SET position = ?", int64(math.MinInt64))
		_, err = w.imports(historyverbs.Import{Progress: func(historydb.Imported) {
			require.True(t, w.is("SELECT fence = 1 AND owner = 'waybill history import' AND locked_until > '2026-01-01' FROM projection_positions"))
		}})
		require.NoError(t, err)
		require.Len(t, w.read(), 1)
		require.True(t, w.is("SELECT fence = 1 AND locked_until < '2026-01-01' FROM projection_positions"))
	})
}

// A lock that somebody keeps isn't waited for with those that others wait for.
func TestImport_WaitsForNoLockWithItsOwn(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		if w.p.DB().Dialect().Name() == dialect.SQLite {
			return // It has one writer.
		}
		w.note(newBook("b"), "1")
		w.keeps()
		w.begins("loans", math.MinInt64)
		lock := func(query string) *bun.Tx {
			tx, err := w.owner.DB().BeginTx(t.Context(), nil)
			require.NoError(t, err)
			t.Cleanup(func() { _ = tx.Rollback() })
			_, err = tx.ExecContext(t.Context(), query)
			require.NoError(t, err)
			return &tx
		}
		other, ended := lock("SELECT 1 FROM projection_positions FOR UPDATE"), make(chan error, 1)
		var session int
		require.NoError(t, other.NewRaw("SELECT pg_backend_pid()").Scan(t.Context(), &session))
		go func() {
			_, err := w.imports(historyverbs.Import{})
			ended <- err
		}()
		waittest.Until(t, func() bool {
			return w.is(fmt.Sprintf("SELECT count(*) = 1 FROM pg_locks WHERE NOT granted AND %d = ANY (pg_blocking_pids(pid))", session))
		})
		require.NoError(t, lock("LOCK TABLE history IN SHARE MODE").Rollback())
		require.NoError(t, other.Rollback())
		require.NoError(t, <-ended)
		require.Len(t, w.read(), 1)
	})
}

// What can't have its place is left out, and counted: it is better to begin later than to
// have a hole.
// Conformance: S2-40.
func TestImport_LeavesOutWhatWouldBeAHole(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		given, kept := newBook("given up"), newBook("kept")
		w.note(given, "1")
		w.note(given, "2")
		w.note(kept, "1")
		w.keeps()
		for range 3 {
			w.note(kept, "more")
		}
		w.exec("DELETE FROM history WHERE version = 3") // as by a program that kept nothing
		// The first was given up, and stays; the second was published, and is removed.
		w.exec("INSERT INTO outbox_abandoned (seq, lane, part, key, at, attempts, losses, maybe_delivered) SELECT seq, lane, part, key, '2026-01-01T00:00:00.000000Z', 1, 0, FALSE FROM outbox_messages WHERE aggregate_id = 'given up' AND aggregate_version = 1")
		w.exec("DELETE FROM outbox_messages WHERE aggregate_id = 'given up' AND aggregate_version = 2")
		w.exec("INSERT INTO outbox_counts (lane, published, retries) SELECT id, 1, 0 FROM outbox_lanes WHERE target = 'default'")
		done, err := w.imports(historyverbs.Import{})
		require.NoError(t, err)
		require.Equal(t, []int64{1, 2}, []int64{done.Events, done.LeftOut})
		require.Equal(t, []string{"kept@1.1", "kept@2.1", "kept@4.1"}, places(w.read()))
		w.begins("loans", 3)
		done, err = w.imports(historyverbs.Import{})
		require.NoError(t, err, "nobody misses what isn't imported")
		require.Equal(t, []int64{0, 2}, []int64{done.Events, done.LeftOut})
	})
}
