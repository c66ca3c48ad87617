// Package rolling_test deploys builds of a program side by side, as the guide to changing
// things says, and holds that nothing is lost, parked or late.
package rolling_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// build is one build of the program.
type build struct {
	name    string
	domain  *domain.Domain
	targets []outbox.Target
	// program is what the build's code does with its units.
	program func(units *uow.Manager) program
}

type program struct {
	lend     func(ctx context.Context, book, first, last string) error
	handlers []subscription.Handler
	more     []subscription.Stream // beside the one that the handlers are of
}

// deployment is a database and brokers with the builds that run.
type deployment struct {
	t        *testing.T
	db       uow.Provider
	own      *memory.Broker
	partner  *memory.Broker
	running  map[string]running
	migrated bool
	lent     int
}

type running struct {
	program
	stop func()
}

// databases runs a test on each, or in the ordinary run on some only.
func databases(t *testing.T, test func(t *testing.T, d *deployment), only ...string) {
	t.Helper()
	t.Parallel()
	all := map[string]func(*testing.T) uow.Provider{
		"postgres": func(t *testing.T) uow.Provider { p, _ := dbtest.Postgres(t); return p },
		"sqlite":   func(t *testing.T) uow.Provider { return dbtest.SQLite(t) },
	}
	if len(only) > 0 && os.Getenv("WAYBILL_LONG") == "" {
		maps.DeleteFunc(all, func(name string, _ func(*testing.T) uow.Provider) bool { return !slices.Contains(only, name) })
	}
	for name, open := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &deployment{t: t, db: open(t), own: memory.New(memory.Config{}), partner: memory.New(memory.Config{}), running: map[string]running{}}
			t.Cleanup(func() { d.run() })
			test(t, d)
		})
	}
}

// run lets these builds run from now on, and no others.
func (d *deployment) run(builds ...build) {
	d.t.Helper()
	stay := map[string]bool{}
	for _, b := range builds {
		stay[b.name] = true
		if _, runs := d.running[b.name]; !runs {
			d.running[b.name] = d.start(b)
		}
	}
	for name, r := range d.running {
		if !stay[name] {
			r.stop()
			delete(d.running, name)
		}
	}
}

func (d *deployment) start(b build) running {
	d.t.Helper()
	units := d.migrate(b)
	p := b.program(units)
	e := d.engine(b, units, append(p.more, subscription.Stream{Name: "reading", Category: "library::book", Handlers: p.handlers, Backoff: time.Millisecond})...)
	require.NoError(d.t, e.Start(d.t.Context()))
	return running{p, func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(d.t, e.Stop(ctx))
	}}
}

// migrate makes the tables, once, and the build's units on them.
func (d *deployment) migrate(b build) *uow.Manager {
	d.t.Helper()
	units, err := uow.New(uow.Config{Domain: b.domain, Providers: []uow.Provider{d.db}, External: b.targets})
	require.NoError(d.t, err)
	if !d.migrated {
		require.NoError(d.t, engine.Migrate(d.t.Context(), units))
		d.migrated = true
	}
	return units
}

func (d *deployment) engine(b build, units *uow.Manager, subscriptions ...subscription.Stream) *engine.Engine {
	d.t.Helper()
	e, err := engine.New(engine.Config{
		Contexts: []engine.Context{{Units: units, Subscriptions: subscriptions}},
		Brokers:  map[string]broker.Broker{"default": d.own.Connect(), "partner": d.partner.Connect()},
		Outbox:   outbox.Config{PollInterval: 20 * time.Millisecond, MaxPollInterval: 20 * time.Millisecond},
		Logger:   slog.New(slog.DiscardHandler),
	})
	require.NoError(d.t, err, b.name)
	return e
}

// lend has each build that runs lend some books, in turn.
func (d *deployment) lend() {
	d.t.Helper()
	for range 3 {
		for name, r := range d.running {
			book := fmt.Sprint("b", d.lent%2)
			require.NoError(d.t, r.lend(d.t.Context(), book, "Ann", "Lee"), name)
			d.lent++
		}
	}
}

func (d *deployment) count(query string, args ...any) (n int) {
	d.t.Helper()
	require.NoError(d.t, d.db.Reader().NewRaw(query, args...).Scan(context.Background(), &n))
	return n
}

// settled waits until all that was lent was heard, once each.
func (d *deployment) settled(read func() int) {
	d.t.Helper()
	waittest.Until(d.t, func() bool {
		return d.count("SELECT count(*) FROM outbox WHERE status <> 'published'") == 0 && read() == d.lent && d.heard() == d.lent
	}, "all that was lent was heard")
}

// heard is how often the processes have heard that their books were lent.
func (d *deployment) heard() int {
	return d.count("SELECT COALESCE(sum(version), 0) FROM processes")
}

// A book is lent to a reader, by a name that has two parts since version 2. So has what
// is kept of the book, and of its process.
type (
	bookLentV1 struct {
		BookID string `json:"book_id"`
		Reader string `json:"reader"`
	}
	bookLent struct {
		BookID string `json:"book_id"`
		First  string `json:"first"`
		Last   string `json:"last"`
	}

	oldBook struct {
		domain.Root
		Lent, Read int
		Reader     string
	}
	bookV1 struct {
		Lent, Read int
		Reader     string
	}
	book struct {
		domain.Root
		Lent, Read  int
		First, Last string
	}

	oldLending struct {
		domain.ProcessRoot
		Reader string
	}
	lendingV1 struct{ Reader string }
	lending   struct {
		domain.ProcessRoot
		First, Last string
	}
)

func (l *oldLending) hears(e bookLentV1) error { l.Reader = e.Reader; return nil }
func (l *lending) hears(e bookLent) error      { l.First, l.Last = e.First, e.Last; return nil }

func upLent(e bookLentV1) bookLent {
	first, last := parts(e.Reader)
	return bookLent{e.BookID, first, last}
}

func downLent(e bookLent) bookLentV1 { return bookLentV1{e.BookID, e.First + " " + e.Last} }

func upBook(b bookV1) *book {
	first, last := parts(b.Reader)
	return &book{Lent: b.Lent, Read: b.Read, First: first, Last: last}
}

func downBook(b *book) bookV1 { return bookV1{b.Lent, b.Read, b.First + " " + b.Last} }

func parts(name string) (first, last string) {
	first, last, _ = strings.Cut(name, " ")
	return first, last
}

// The three builds of a change: before, between and after. The partner stays on
// version 1 throughout.
func builds(t *testing.T) (before, between, after build) {
	t.Helper()
	declare := func(elements ...domain.Element) *domain.Domain {
		d, err := domain.New("library", elements...)
		require.NoError(t, err)
		return d
	}
	name, public := domain.Named("BookLent"), domain.Published()
	partner := []outbox.Target{{Broker: "partner"}}
	before = build{"before", declare(
		domain.Aggregate[*oldBook]("book", domain.Event[bookLentV1](name, public)),
		domain.Process[*oldLending]("lending", domain.CorrelatedBy("book_id"), domain.Starts((*oldLending).hears)),
	), partner, func(units *uow.Manager) program {
		books := repository.New[*oldBook](units)
		return program{lend: func(ctx context.Context, id, first, last string) error {
			return change(ctx, units, books, id, func() *oldBook { return &oldBook{Root: domain.RootWithID(id)} }, func(b *oldBook) {
				b.Lent++
				b.Reader = first + " " + last
				b.Raise(bookLentV1{id, b.Reader})
			})
		}, handlers: []subscription.Handler{subscription.On(func(ctx context.Context, e bookLentV1) error {
			return books.Update(ctx, e.BookID, func(b *oldBook) error { b.Read++; return right(e.Reader) })
		})}}
	}}

	upLending := domain.UpcastState(1, func(s lendingV1) *lending { f, l := parts(s.Reader); return &lending{First: f, Last: l} })
	two := domain.StateVersion(2)
	code := func(units *uow.Manager) program {
		books := repository.New[*book](units)
		return program{lend: func(ctx context.Context, id, first, last string) error {
			return change(ctx, units, books, id, func() *book { return &book{Root: domain.RootWithID(id)} }, func(b *book) {
				b.Lent++
				b.First, b.Last = first, last
				b.Raise(bookLent{id, first, last})
			})
		}, handlers: []subscription.Handler{subscription.On(func(ctx context.Context, e bookLent) error {
			return books.Update(ctx, e.BookID, func(b *book) error { b.Read++; return right(e.First + " " + e.Last) })
		})}}
	}
	pinned := []outbox.Target{{Broker: "partner", Versions: map[string]int{"BookLent": 1}}}
	between = build{"between", declare(
		domain.Aggregate[*book]("book",
			domain.StateVersion(2),
			domain.UpcastState(1, upBook),
			domain.WriteState(1, downBook),
			domain.Event[bookLent](name, public,
				domain.Version(2),
				domain.Upcast(1, upLent),
				domain.Downcast(2, downLent),
				domain.WriteVersion(1),
			),
		),
		domain.Process[*lending]("lending", two, upLending, domain.WriteState(1, func(s *lending) lendingV1 { return lendingV1{s.First + " " + s.Last} }),
			domain.CorrelatedBy("book_id"), domain.Starts((*lending).hears)),
	), pinned, code}
	after = build{"after", declare(
		domain.Aggregate[*book]("book",
			domain.StateVersion(2),
			domain.UpcastState(1, upBook),
			domain.Event[bookLent](name, public,
				domain.Version(2),
				domain.Upcast(1, upLent),
				domain.Downcast(2, downLent), // for the partner
			),
		),
		domain.Process[*lending]("lending", two, upLending, domain.CorrelatedBy("book_id"), domain.Starts((*lending).hears)),
	), pinned, code}
	return before, between, after
}

// change makes or changes a book.
func change[A domain.AggregateRoot](ctx context.Context, units *uow.Manager, books *repository.Repository[A], id string, made func() A, change func(A)) error {
	return units.Do(ctx, func(ctx context.Context) error {
		b, err := books.Get(ctx, id)
		if _, missing := errors.AsType[*repository.NotFoundError](err); missing {
			b, err = made(), nil
		}
		if err != nil {
			return err
		}
		change(b)
		return books.Save(ctx, b)
	})
}

func right(reader string) error {
	if reader != "Ann Lee" {
		return fmt.Errorf("the reader is %q", reader)
	}
	return nil
}

// read is how often books were read, in whatever form they are.
func (d *deployment) read() (n int) {
	d.t.Helper()
	var states []string
	require.NoError(d.t, d.db.Reader().NewRaw("SELECT state FROM documents WHERE category = 'library::book' ORDER BY id").Scan(d.t.Context(), &states))
	for _, s := range states {
		var b struct{ Read int }
		require.NoError(d.t, json.Unmarshal([]byte(s), &b))
		n += b.Read
	}
	return n
}

// tally reads what was heard.
func (d *deployment) tally(heard *map[string]int) bool {
	d.t.Helper()
	var state string
	require.NoError(d.t, d.db.Reader().NewRaw("SELECT state FROM documents WHERE category = 'library::tally'").Scan(d.t.Context(), &state))
	var t struct{ Heard map[string]int }
	require.NoError(d.t, json.Unmarshal([]byte(state), &t))
	*heard = t.Heard
	return true
}

// versions are those that an event has at a broker.
func versions(b *memory.Broker) (types map[string]int) {
	types = map[string]int{}
	for _, m := range b.Messages("library.book") {
		types[m.Headers["type"]]++
	}
	return types
}

// N3: an event, a document and a process change their form in two deployments, each of
// which runs both builds for a while, and the second is taken back once. Nothing is ever
// parked, all is handled once, and the partner sees version 1 throughout.
func TestRolling_N3_ReadFirstThenWrite(t *testing.T) {
	databases(t, func(t *testing.T, d *deployment) {
		before, between, after := builds(t)
		for _, step := range [][]build{{before}, {before, between}, {between}, {between, after}, {between}, {between, after}, {after}} {
			d.run(step...)
			d.lend()
			if len(step) == 1 {
				d.settled(d.read)
			}
			require.Zero(t, d.count("SELECT count(*) FROM dead_letters"))
		}
		require.Equal(t, map[string]int{"Library.BookLent.v1": d.lent}, versions(d.partner))
		own := versions(d.own)
		require.Equal(t, d.lent, own["Library.BookLent.v1"]+own["Library.BookLent.v2"])
		require.GreaterOrEqual(t, own["Library.BookLent.v2"], 3)
		require.Equal(t, 2, d.count("SELECT min(state_version) FROM documents"))
		require.Equal(t, 2, d.count("SELECT min(state_version) FROM processes"))
	})
}

// N3: who leaves the step between out waits, and loses nothing: builds of before park
// what they can't read, once, and those of after handle it by themselves.
func TestRolling_N3_WithoutTheStepBetween(t *testing.T) {
	databases(t, func(t *testing.T, d *deployment) {
		before, _, after := builds(t)
		d.run(before)
		d.lend()
		d.settled(d.read)
		d.run(before, after)
		for i := range 6 {
			require.NoError(t, d.running["after"].lend(t.Context(), fmt.Sprint("b", i%2), "Ann", "Lee"))
			d.lent++
		}
		_, refused := errors.AsType[*domain.NewerStateError](d.running["before"].lend(t.Context(), "b0", "Ann", "Lee"))
		require.True(t, refused, "and its caller is told")
		d.settled(d.read)
		d.run(after)
		d.lend()
		d.settled(d.read)
		require.Zero(t, d.count("SELECT count(*) FROM dead_letters WHERE status <> 'replayed'"))
		require.Zero(t, d.count("SELECT count(*) FROM dead_letters WHERE reason NOT IN ('newer_version', 'held')"))
		require.Equal(t, map[string]int{"Library.BookLent.v1": d.lent}, versions(d.partner))
	})
}
