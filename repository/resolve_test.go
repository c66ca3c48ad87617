package repository_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/netfault"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

// write is one thing that a unit can do to an aggregate. prepare returns the
// aggregate, as it is before; again is how a unit that did not happen is tried
// again with the same instance.
type write[A counter] struct {
	prepare func(t *testing.T, k kind[A], id string) A
	do      func(ctx context.Context, k kind[A], a A) error
	again   func(ctx context.Context, k kind[A], a A) error
	version int64 // before
	removes bool
}

func save[A counter](ctx context.Context, k kind[A], a A) error { return k.repo.Save(ctx, a) }

func remove[A counter](ctx context.Context, k kind[A], a A) error { return k.repo.Remove(ctx, a) }

// create looks the identity up, and saves.
func create[A counter](ctx context.Context, k kind[A], a A) error {
	return k.db.units.Do(ctx, func(ctx context.Context) error {
		if _, err := k.repo.Get(ctx, a.ID()); err == nil {
			return errors.New("it exists")
		}
		return k.repo.Save(ctx, a)
	})
}

func writes[A counter]() map[string]write[A] {
	saved := func(t *testing.T, k kind[A], id string) A { return k.saved(t, id) }
	return map[string]write[A]{
		"new":     {prepare: func(_ *testing.T, k kind[A], id string) A { return k.create(id) }, do: save[A], again: save[A]},
		"changed": {version: 1, prepare: saved, do: save[A], again: save[A]},
		"removed": {version: 1, prepare: saved, do: remove[A], again: remove[A], removes: true},
		"created again": {version: 2, prepare: func(t *testing.T, k kind[A], id string) A {
			require.NoError(t, k.repo.Remove(t.Context(), k.saved(t, id)))
			return k.create(id)
		}, do: create[A], again: create[A]},
	}
}

// faults loses answers.
type faults interface {
	Set(f netfault.Fault)
	Deliver()
}

// setting is a database that can lose answers. clean is the same one without.
type setting struct {
	db, clean testDB
	faults    faults
	paths     map[string]func(context.Context) error
}

var (
	oneTrip = map[string]func(context.Context) error{"one trip": func(context.Context) error { return nil }}
	anyPath = map[string]func(context.Context) error{"one trip": oneTrip["one trip"], "begun": func(ctx context.Context) error {
		_, err := uow.DB(ctx) // which sends what was saved
		return err
	}}
)

// onEachKind runs a test for documents, rows and events, for each write, in one
// trip and in a transaction that has begun: on PostgreSQL behind a relay.
func onEachKind(t *testing.T, test func(t *testing.T, l lostUnit)) {
	db, relay := openThrough(t)
	s := setting{db: db, clean: openThe(t, db), faults: relay, paths: anyPath}
	holdCommits(t, s.clean)
	eachKind(t, s, test)
}

// onEachKindAnywhere does so on SQLite too, where the provider itself loses.
func onEachKindAnywhere(t *testing.T, test func(t *testing.T, l lostUnit)) {
	onEachKind(t, test)
	clean := openSQLite(t, "default")
	p := &losing{Provider: clean.provider}
	db := testDB{provider: p, units: newUnits(t, uow.Config{Providers: []uow.Provider{p}})}
	eachKind(t, setting{db: db, clean: clean, faults: p, paths: oneTrip}, test)
}

func eachKind(t *testing.T, s setting, test func(t *testing.T, l lostUnit)) {
	eachWrite(t, s, "documents", kind[*Tally]{s.db, repository.New[*Tally](s.db.units), newTally, "shop::tally-"}, test)
	eachWrite(t, s, "rows", kind[*Basket]{s.db, repository.Mapped(s.db.units, basketMapping), newBasket, "shop::basket-"}, test)
	eachWrite(t, s, "events", kind[*Ledger]{s.db, repository.EventSourced[*Ledger](s.db.units), newLedger, "shop::ledger-"}, test)
}

// losing is a provider that loses a unit's statements, or the answer.
type losing struct {
	uow.Provider
	next netfault.Fault
	late []uow.Statement
}

func (p *losing) Set(f netfault.Fault) { p.next = f }
func (p *losing) Session() uow.Session { return &losingSession{p.Provider.Session(), p} }

func (p *losing) Deliver() {
	s := p.Provider.Session()
	_ = s.Commit(context.Background(), p.late)
	_ = s.Rollback(context.Background())
}

type losingSession struct {
	uow.Session
	p *losing
}

func (s *losingSession) Commit(ctx context.Context, statements []uow.Statement) error {
	f := s.p.next
	s.p.next = netfault.None
	switch f {
	case netfault.None:
		return s.Session.Commit(ctx, statements)
	case netfault.CutAfter:
		if err := s.Session.Commit(ctx, statements); err != nil {
			return err
		}
	case netfault.Late:
		s.p.late = statements
	default:
	}
	return &uow.CommitUnknownError{Err: errors.New("lost")}
}

// openThrough opens a database whose connections can be broken.
func openThrough(t *testing.T) (testDB, *netfault.Relay) {
	t.Helper()
	dsn, relay := through(t, postgresDSN(t))
	db := openPostgres(t, dsn)
	quietly(t, db)
	a := newTally("the first event reads the partition count")
	a.Add(1)
	require.NoError(t, repository.New[*Tally](db.units).Save(t.Context(), a))
	return db, relay
}

// quietly tells nobody else of commits, which would be one more request.
func quietly(t *testing.T, db testDB) {
	t.Cleanup(db.units.OnCommit(func(string, []outbox.Poke) []outbox.Poke { return nil }))
}

// openThe opens a database again, without a relay.
func openThe(t *testing.T, db testDB) testDB {
	t.Helper()
	var schema string
	require.NoError(t, db.provider.DB().NewRaw("SELECT current_schema()").Scan(t.Context(), &schema))
	p := reopen(t, schema)
	return testDB{provider: p, owner: p}
}

func eachWrite[A counter](t *testing.T, s setting, name string, k kind[A], test func(t *testing.T, l lostUnit)) {
	for what, w := range writes[A]() {
		for path, first := range s.paths {
			t.Run(fmt.Sprintf("%s %s, %s", name, what, path), func(t *testing.T) {
				l := newLostUnit(t, s, k, w, first)
				l.begun = path == "begun"
				test(t, l)
			})
		}
	}
}

// lostUnit is a unit of work whose COMMIT will not be answered.
type lostUnit struct {
	setting
	begun   bool
	stream  string
	a       counter
	before  int64
	event   string // its message id
	run     func(f netfault.Fault) *uow.CommitUnknownError
	again   func() error
	exists  func(t *testing.T) bool
	other   func(t *testing.T) // somebody else writes the next version
	removes bool
	wakes   *int
	after   *int
}

func newLostUnit[A counter](t *testing.T, s setting, k kind[A], w write[A], first func(context.Context) error) lostUnit {
	id := fmt.Sprint("lost-", time.Now().UnixNano())
	a := w.prepare(t, k, id)
	l := lostUnit{setting: s, stream: k.stream + id, a: a, before: w.version, removes: w.removes, wakes: new(int), after: new(int)}
	a.Add(41)
	l.event = domain.PendingEvents(a)[0].ID
	t.Cleanup(s.db.units.OnCommit(func(string, []outbox.Poke) []outbox.Poke { *l.wakes++; return nil }))
	l.run = func(f netfault.Fault) *uow.CommitUnknownError {
		err := s.db.units.Do(t.Context(), func(ctx context.Context) error {
			u, err := uow.From(ctx)
			require.NoError(t, err)
			u.AfterCommit(func(context.Context) { *l.after++ })
			if err := errors.Join(w.do(ctx, k, a), first(ctx)); err != nil {
				return err
			}
			s.faults.Set(f)
			return nil
		})
		unknown, ok := errors.AsType[*uow.CommitUnknownError](err)
		require.True(t, ok, "%v", err)
		require.Len(t, domain.PendingEvents(a), 1, "until it is known")
		require.Zero(t, *l.wakes)
		return unknown
	}
	l.again = func() error { return w.again(t.Context(), k, a) }
	l.exists = func(t *testing.T) bool {
		_, err := k.repo.Get(t.Context(), id)
		if err != nil {
			requireMissing(t, err, id)
		}
		return err == nil
	}
	l.other = func(t *testing.T) {
		b, write := k.create(id), create[A]
		if l.exists(t) {
			b, write = k.get(t, id), save[A]
		}
		b.SetLabel("other")
		require.NoError(t, write(t.Context(), k, b))
	}
	return l
}

// stored is how often the event is in the outbox.
func (l lostUnit) stored(t *testing.T) (n int) {
	t.Helper()
	for _, r := range l.clean.outbox(t, l.stream) {
		if r.MessageID == l.event {
			n++
		}
	}
	return n
}

func (l lostUnit) resolved(t *testing.T, unknown *uow.CommitUnknownError, want uow.Outcome) {
	t.Helper()
	outcome, err := unknown.Resolve(t.Context())
	require.NoError(t, err)
	require.Equal(t, want, outcome)
	l.settled(t, unknown, want)
}

// settled says that everything is as want says it has to be, and that to ask
// again changes nothing.
func (l lostUnit) settled(t *testing.T, unknown *uow.CommitUnknownError, want uow.Outcome) {
	t.Helper()
	outcome, err := unknown.Resolve(t.Context())
	require.NoError(t, err)
	require.Equal(t, want, outcome, "the same answer")
	if want == uow.Committed {
		require.Equal(t, 1, l.stored(t))
		require.Empty(t, domain.PendingEvents(l.a))
		require.Equal(t, l.before+1, l.a.Version())
		require.Equal(t, !l.removes, l.exists(t))
		require.Equal(t, []int{1, 1}, []int{*l.wakes, *l.after})
		return
	}
	require.Zero(t, l.stored(t))
	require.Len(t, domain.PendingEvents(l.a), 1)
	require.Equal(t, []int{0, 0}, []int{*l.wakes, *l.after})
}

// triedAgain saves the unit's aggregate again.
func (l lostUnit) triedAgain(t *testing.T) {
	t.Helper()
	require.NoError(t, l.again())
	require.Equal(t, 1, l.stored(t))
	require.Empty(t, domain.PendingEvents(l.a))
	require.Equal(t, l.before+1, l.a.Version())
	require.Equal(t, !l.removes, l.exists(t))
}

// F-55: the request was lost, or its answer.
func TestResolve_F55_Cut(t *testing.T) {
	t.Parallel()
	onEachKindAnywhere(t, func(t *testing.T, l lostUnit) {
		unknown := l.run(netfault.CutAfter)
		l.resolved(t, unknown, uow.Committed)
		_ = l.again() // nothing is new, or it is gone
		require.Equal(t, 1, l.stored(t))
	})
	onEachKindAnywhere(t, func(t *testing.T, l lostUnit) {
		l.resolved(t, l.run(netfault.CutBefore), uow.NotCommitted)
		l.triedAgain(t)
	})
}

// F-55: the request is still on its way when somebody asks. "Not committed" has
// to stay true.
func TestResolve_F55_Late(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(t *testing.T, l lostUnit, unknown *uow.CommitUnknownError){
		"and then arrives": func(t *testing.T, l lostUnit, unknown *uow.CommitUnknownError) {
			l.resolved(t, unknown, uow.NotCommitted)
			l.faults.Deliver()
			l.settled(t, unknown, uow.NotCommitted)
			l.triedAgain(t)
		},
		"and arrives after the second try": func(t *testing.T, l lostUnit, unknown *uow.CommitUnknownError) {
			l.resolved(t, unknown, uow.NotCommitted)
			l.triedAgain(t)
			l.faults.Deliver()
			require.Equal(t, 1, l.stored(t))
			require.Equal(t, !l.removes, l.exists(t))
		},
		"and another is lost on the same version": func(t *testing.T, l lostUnit, unknown *uow.CommitUnknownError) {
			l.resolved(t, unknown, uow.NotCommitted)
			l.resolved(t, l.run(netfault.CutBefore), uow.NotCommitted)
			l.faults.Deliver()
			l.settled(t, unknown, uow.NotCommitted)
			l.triedAgain(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEachKindAnywhere(t, func(t *testing.T, l lostUnit) {
				unknown := l.run(netfault.Late)
				if !l.begun {
					test(t, l, unknown)
					return
				}
				// Its transaction has written, and only COMMIT is on the way: nobody
				// can know before it has arrived.
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				_, err := unknown.Resolve(ctx)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.ErrorContains(t, err, "not known yet")
				require.Zero(t, *l.wakes+*l.after)
				l.faults.Deliver()
				l.resolved(t, unknown, uow.Committed)
			})
		})
	}
}

// F-55: the server is still at the unit, and is asked meanwhile.
func TestResolve_F55_StillRunning(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, h *held) uow.Outcome{
		"and commits": func(t *testing.T, h *held) uow.Outcome {
			h.release(t)
			return uow.Committed
		},
		"and fails": func(t *testing.T, h *held) uow.Outcome {
			h.terminate(t)
			return uow.NotCommitted
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEachKind(t, func(t *testing.T, l lostUnit) {
				h := hold(t, l.clean)
				unknown := l.run(netfault.CutWhile)
				h.waiting(t)
				answers := make(chan answer, 1)
				go func() {
					outcome, err := unknown.Resolve(t.Context())
					answers <- answer{outcome, err}
				}()
				select {
				case a := <-answers:
					require.Fail(t, "it did not wait", "%v", a)
				case <-time.After(50 * time.Millisecond):
				}
				want := end(t, h)
				require.Equal(t, answer{outcome: want}, <-answers)
				l.settled(t, unknown, want)
				if want == uow.NotCommitted {
					l.triedAgain(t)
				}
			})
		})
	}
}

type answer struct {
	outcome uow.Outcome
	err     error
}

// Somebody else has written a later version.
func TestResolve_OverwrittenSince(t *testing.T) {
	t.Parallel()
	onEachKind(t, func(t *testing.T, l lostUnit) {
		if l.removes {
			return
		}
		unknown := l.run(netfault.CutAfter)
		l.other(t)
		*l.wakes = 0
		l.resolved(t, unknown, uow.Committed) // the row is in the outbox
	})
	onEachKind(t, func(t *testing.T, l lostUnit) {
		if l.removes {
			return
		}
		unknown := l.run(netfault.CutAfter)
		l.other(t)
		*l.wakes = 0
		l.clean.exec(t, "DELETE FROM outbox_queue") // on publish
		l.clean.exec(t, "DELETE FROM outbox_messages")
		outcome, err := unknown.Resolve(t.Context())
		require.NoError(t, err)
		if _, sourced := l.a.(*Ledger); sourced {
			require.Equal(t, uow.Committed, outcome, "a history forgets nothing")
			return
		}
		require.Equal(t, uow.Overwritten, outcome)
		require.Len(t, domain.PendingEvents(l.a), 1)
		require.Zero(t, *l.wakes+*l.after)
		require.Error(t, l.again(), "so its events can't be stored twice")
		require.Zero(t, l.stored(t))
	})
	// Somebody else has written the version that was to be the unit's.
	onEachKind(t, func(t *testing.T, l lostUnit) {
		if l.removes {
			return
		}
		unknown := l.run(netfault.Late)
		if l.begun {
			l.faults.Deliver() // it holds the row, so nobody else writes
			return
		}
		l.other(t)
		*l.wakes = 0
		l.resolved(t, unknown, uow.NotCommitted)
		l.faults.Deliver()
		l.settled(t, unknown, uow.NotCommitted)
	})
}

// A new instance under the same identity can be saved where one was refused.
func TestResolve_NewUnderTheSameIdentity(t *testing.T) {
	t.Parallel()
	db, relay := openThrough(t)
	newUnderTheSame(t, relay, kind[*Tally]{db, repository.New[*Tally](db.units), newTally, "shop::tally-"})
	newUnderTheSame(t, relay, kind[*Basket]{db, repository.Mapped(db.units, basketMapping), newBasket, "shop::basket-"})
	newUnderTheSame(t, relay, kind[*Ledger]{db, repository.EventSourced[*Ledger](db.units), newLedger, "shop::ledger-"})
}

func newUnderTheSame[A counter](t *testing.T, relay *netfault.Relay, k kind[A]) {
	t.Helper()
	for range 2 {
		err := k.db.units.Do(t.Context(), func(ctx context.Context) error {
			err := k.repo.Save(ctx, k.made("a")) // which may have to look at the targets
			relay.Set(netfault.CutBefore)
			return err
		})
		unknown, ok := errors.AsType[*uow.CommitUnknownError](err)
		require.True(t, ok, "%v", err)
		outcome, err := unknown.Resolve(t.Context())
		require.NoError(t, err)
		require.Equal(t, uow.NotCommitted, outcome)
		_, err = k.repo.Get(t.Context(), "a")
		requireMissing(t, err, "a")
		require.Empty(t, k.db.outbox(t, k.stream+"a"))
	}
	a := k.saved(t, "a")
	require.EqualValues(t, 1, a.Version())
	require.Equal(t, 1, k.get(t, "a").Total())
	require.NoError(t, k.repo.Remove(t.Context(), a))
	_, err := k.repo.Get(t.Context(), "a")
	requireMissing(t, err, "a")
}

// held is a lock that COMMIT waits for.
type held struct {
	db      testDB
	session uow.Session
	pid     int
}

// holdCommits lets a commit wait for the locks that the table holds names.
func holdCommits(t *testing.T, db testDB) {
	t.Helper()
	_, err := db.owner.DB().DB.ExecContext(t.Context(), `CREATE TABLE holds (key bigint);
		CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(key) FROM holds; RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON outbox_messages DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION hold()`)
	require.NoError(t, err)
}

func hold(t *testing.T, db testDB) *held {
	t.Helper()
	h := &held{db: db, session: db.provider.Session()}
	t.Cleanup(func() { _ = h.session.Rollback(context.Background()) })
	tx, err := h.session.DB(t.Context())
	require.NoError(t, err)
	key := rand.Int64()
	require.NoError(t, tx.NewRaw("SELECT pg_backend_pid() FROM pg_advisory_xact_lock(?)", key).Scan(t.Context(), &h.pid))
	db.exec(t, "INSERT INTO holds VALUES (?)", key)
	return h
}

// waiting is the process that waits for h.
func (h *held) waiting(t *testing.T) (pid int) {
	t.Helper()
	waittest.Until(t, func() bool {
		err := h.db.provider.DB().NewRaw("SELECT pid FROM pg_stat_activity WHERE ? = ANY (pg_blocking_pids(pid))", h.pid).Scan(t.Context(), &pid)
		return err == nil
	})
	return pid
}

// terminate ends the transaction that waits.
func (h *held) terminate(t *testing.T) {
	t.Helper()
	h.db.exec(t, "DELETE FROM holds")
	h.db.exec(t, "SELECT pg_terminate_backend(?)", h.waiting(t))
}

func (h *held) release(t *testing.T) {
	t.Helper()
	h.db.exec(t, "DELETE FROM holds")
	require.NoError(t, h.session.Rollback(t.Context()))
}
