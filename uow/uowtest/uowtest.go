// Package uowtest is the suite that every provider of units of work passes. It is of use for a
// provider that reaches PostgreSQL or SQLite in another way, such as through a driver of your
// own; other databases can't be added from outside, as docs/guides/writing-an-adapter.md says.
package uowtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/suitetest"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

// Config is what the suite needs to know of a provider. All of it is required.
type Config struct {
	// Open opens a provider on an empty database and closes it after the test.
	Open func(t *testing.T) uow.Provider
	// Beside opens the same database once more, as another process does, and closes
	// it after the test.
	Beside func(t *testing.T, p uow.Provider) uow.Provider
	// InUse is how many connections are out of the provider's pools.
	InUse func(p uow.Provider) int
}

// Run runs the suite as subtests of t. Of each that fails the log says its contract, what
// can't be kept without it, and what to do.
func Run(t *testing.T, c Config) {
	tests := map[string]func(*testing.T, *fixture){
		"Commit":                      testCommit,
		"CommitOfNothing":             testCommitOfNothing,
		"Order":                       testOrder,
		"DemandedRows":                testDemandedRows,
		"DemandWithoutElse":           testDemandWithoutElse,
		"FirstMissIsReported":         testFirstMissIsReported,
		"FailedStatement":             testFailedStatement,
		"MissingTable":                testMissingTable,
		"StatementsMayEndInComments":  testComments,
		"NULIsRefused":                testNUL,
		"Rollback":                    testRollback,
		"EndedSession":                testEndedSession,
		"ReadsSeeTheTransaction":      testReads,
		"DB":                          testDB,
		"DBOutlivesItsContext":        testDBOutlivesItsContext,
		"SwallowedErrorLosesNothing":  testSwallowedError,
		"ARowIsOfAQueryThatSucceeds":  testRowOfAFailure,
		"CancelledBefore":             testCancelledBefore,
		"CancelledWithin":             testCancelledWithin,
		"GuardRowHasOneWinner":        testGuardRow,
		"ConcurrentIncrements":        testIncrements,
		"WaitingCommitCanBeCancelled": testWaitingCommit,
		"SignalsAreHeard":             testSignals,
	}
	for name, test := range tests {
		suitetest.Check(t, name, contracts[name], func(t *testing.T) {
			f := &fixture{h: c, p: c.Open(t)}
			f.exec(t, "CREATE TABLE things (id text PRIMARY KEY, n integer NOT NULL)")
			test(t, f)
			require.Eventually(t, func() bool { return c.InUse(f.p) == 0 }, 10*time.Second, 5*time.Millisecond, "a connection was not returned")
		})
	}
}

type fixture struct {
	h Config
	p uow.Provider
}

func (f *fixture) exec(t *testing.T, query string) {
	t.Helper()
	_, err := f.p.DB().ExecContext(t.Context(), query)
	require.NoError(t, err)
}

// stored is the table's content, as others see it.
func (f *fixture) stored(t *testing.T) string { return content(t, f.p.Reader()) }

func content(t *testing.T, db bun.IDB) string {
	t.Helper()
	var rows []struct {
		ID string
		N  int
	}
	require.NoError(t, db.NewRaw("SELECT id, n FROM things ORDER BY id").Scan(t.Context(), &rows))
	var b strings.Builder
	for _, r := range rows {
		fmt.Fprintf(&b, "%s=%d ", r.ID, r.N)
	}
	return strings.TrimSpace(b.String())
}

func statement(rows int64, otherwise error, query string, args ...any) uow.Statement {
	return uow.Statement{Query: bun.SafeQuery(query, args...), Rows: rows, Else: otherwise}
}

func insert(id string, n int) uow.Statement {
	return statement(-1, nil, "INSERT INTO things (id, n) VALUES (?, ?)", id, n)
}

func claim(id string, otherwise error) uow.Statement {
	return statement(1, otherwise, "INSERT INTO things (id, n) VALUES (?, 1) ON CONFLICT DO NOTHING", id)
}

// ways are the ways in which statements reach the database: with COMMIT, with
// COMMIT in a transaction that has begun, and before it.
var ways = map[string]func(ctx context.Context, s uow.Session, statements []uow.Statement) error{
	"commit": func(ctx context.Context, s uow.Session, statements []uow.Statement) error {
		return s.Commit(ctx, statements)
	},
	"begun": func(ctx context.Context, s uow.Session, statements []uow.Statement) error {
		if _, err := s.DB(ctx); err != nil {
			return err
		}
		return s.Commit(ctx, statements)
	},
	"send": func(ctx context.Context, s uow.Session, statements []uow.Statement) error {
		if err := s.Send(ctx, statements); err != nil {
			return err
		}
		return s.Commit(ctx, nil)
	},
}

func everyWay(t *testing.T, test func(t *testing.T, way func(context.Context, uow.Session, []uow.Statement) error)) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) { test(t, way) })
	}
}

// fails runs statements, expects an error and rolls back.
func (f *fixture) fails(t *testing.T, way func(context.Context, uow.Session, []uow.Statement) error, statements ...uow.Statement) error {
	t.Helper()
	s := f.p.Session()
	err := way(t.Context(), s, statements)
	require.Error(t, err)
	require.NoError(t, s.Rollback(t.Context()))
	_, unknown := errors.AsType[*uow.CommitUnknownError](err)
	require.False(t, unknown, "the database has answered: %v", err)
	return err
}

func testCommit(t *testing.T, f *fixture) {
	everyWay(t, func(t *testing.T, way func(context.Context, uow.Session, []uow.Statement) error) {
		f.exec(t, "DELETE FROM things")
		s := f.p.Session()
		require.False(t, s.Began())
		require.NoError(t, way(t.Context(), s, []uow.Statement{insert("a", 1), insert("b", 2)}))
		require.Equal(t, "a=1 b=2", f.stored(t))
		require.NoError(t, s.Rollback(t.Context()), "it does nothing after Commit")
		require.Equal(t, "a=1 b=2", f.stored(t))
	})
}

func testCommitOfNothing(t *testing.T, f *fixture) {
	everyWay(t, func(t *testing.T, way func(context.Context, uow.Session, []uow.Statement) error) {
		require.NoError(t, way(t.Context(), f.p.Session(), nil))
	})
}

func testOrder(t *testing.T, f *fixture) {
	everyWay(t, func(t *testing.T, way func(context.Context, uow.Session, []uow.Statement) error) {
		f.exec(t, "DELETE FROM things")
		require.NoError(t, way(t.Context(), f.p.Session(), []uow.Statement{
			insert("a", 1),
			statement(1, errors.New("a is not 1"), "UPDATE things SET n = 2 WHERE id = 'a' AND n = 1"),
			statement(-1, nil, "UPDATE things SET n = n * 10"),
			insert("b", 5),
			statement(1, errors.New("a is not 20"), "DELETE FROM things WHERE id = 'a' AND n = 20"),
		}))
		require.Equal(t, "b=5", f.stored(t))
	})
}

func testDemandedRows(t *testing.T, f *fixture) {
	errElse := errors.New("another number of rows")
	everyWay(t, func(t *testing.T, way func(context.Context, uow.Session, []uow.Statement) error) {
		for affected := range 4 {
			for demanded := int64(-1); demanded < 4; demanded++ {
				f.exec(t, "DELETE FROM things")
				f.exec(t, "INSERT INTO things VALUES ('a', 0), ('b', 1), ('c', 2)")
				update := statement(demanded, errElse, "UPDATE things SET n = n + 10 WHERE n < ?", affected)
				if demanded == -1 || int(demanded) == affected {
					require.NoError(t, way(t.Context(), f.p.Session(), []uow.Statement{update, insert("x", 7)}))
					require.Contains(t, f.stored(t), "x=7")
					continue
				}
				require.ErrorIs(t, f.fails(t, way, update, insert("x", 7)), errElse, "%d rows for %d", affected, demanded)
				require.Equal(t, "a=0 b=1 c=2", f.stored(t))
			}
		}
	})
}

func testDemandWithoutElse(t *testing.T, f *fixture) {
	everyWay(t, func(t *testing.T, way func(context.Context, uow.Session, []uow.Statement) error) {
		require.ErrorContains(t, f.fails(t, way, insert("a", 1), statement(1, nil, "UPDATE things SET n = 2 WHERE id = 'none'")), "Else")
		require.Empty(t, f.stored(t))
	})
}

// Whichever of n statements misses, its own Else is the error, and nothing is
// stored: not of those before it, nor of those behind.
func testFirstMissIsReported(t *testing.T, f *fixture) {
	everyWay(t, func(t *testing.T, way func(context.Context, uow.Session, []uow.Statement) error) {
		for n := 1; n <= 6; n++ {
			for k := range n {
				statements := make([]uow.Statement, n)
				for i := range statements {
					switch id := fmt.Sprint("id-", i); {
					case i == k:
						statements[i] = statement(1, fmt.Errorf("statement %d", i), "UPDATE things SET n = 2 WHERE id = 'none'")
					case i%2 == k%2:
						statements[i] = insert(id, i)
					case i > k: // misses too, but later
						statements[i] = statement(2, fmt.Errorf("statement %d", i), "UPDATE things SET n = 3 WHERE id = 'none'")
					default:
						statements[i] = claim(id, fmt.Errorf("statement %d", i))
					}
				}
				require.ErrorIs(t, f.fails(t, way, statements...), statements[k].Else, "%d of %d", k, n)
				require.Empty(t, f.stored(t))
			}
		}
	})
}

func testFailedStatement(t *testing.T, f *fixture) {
	everyWay(t, func(t *testing.T, way func(context.Context, uow.Session, []uow.Statement) error) {
		f.exec(t, "DELETE FROM things")
		f.exec(t, "INSERT INTO things VALUES ('a', 1)")
		errElse := errors.New("another number of rows")
		err := f.fails(t, way, insert("b", 1), statement(1, errElse, "INSERT INTO things VALUES ('a', 2)"), insert("c", 1))
		require.NotErrorIs(t, err, errElse, "a broken constraint is not a missed number")
		require.Equal(t, "a=1", f.stored(t))
		require.False(t, f.p.Retryable(err))
	})
}

func testMissingTable(t *testing.T, f *fixture) {
	everyWay(t, func(t *testing.T, way func(context.Context, uow.Session, []uow.Statement) error) {
		err := f.fails(t, way, insert("a", 1), statement(-1, nil, "INSERT INTO outbox_of_nobody VALUES (1)"))
		require.ErrorContains(t, err, "outbox_of_nobody")
		require.ErrorContains(t, err, "waybill migrate")
		require.Empty(t, f.stored(t))
	})
}

func testComments(t *testing.T, f *fixture) {
	everyWay(t, func(t *testing.T, way func(context.Context, uow.Session, []uow.Statement) error) {
		f.exec(t, "DELETE FROM things")
		require.NoError(t, way(t.Context(), f.p.Session(), []uow.Statement{
			statement(-1, nil, "INSERT INTO things VALUES ('a', 1) -- why; not?"),
			statement(1, errors.New("missed"), "UPDATE things SET n = 2 -- all of it"),
		}))
		require.Equal(t, "a=2", f.stored(t))
	})
}

func testNUL(t *testing.T, f *fixture) {
	everyWay(t, func(t *testing.T, way func(context.Context, uow.Session, []uow.Statement) error) {
		err := f.fails(t, way, insert("a", 1), statement(-1, nil, "INSERT INTO things (id, n) VALUES (?, 1) -- \x00", "b"), insert("c", 1))
		require.ErrorContains(t, err, "NUL")
		require.Empty(t, f.stored(t))
	})
}

func testRollback(t *testing.T, f *fixture) {
	require.NoError(t, f.p.Session().Rollback(t.Context()), "before anything")
	s := f.p.Session()
	require.NoError(t, s.Send(t.Context(), []uow.Statement{insert("a", 1)}))
	require.NoError(t, s.Rollback(t.Context()))
	require.NoError(t, s.Rollback(t.Context()), "twice")
	s = f.p.Session()
	db, err := s.DB(t.Context())
	require.NoError(t, err)
	_, err = db.ExecContext(t.Context(), "INSERT INTO things VALUES ('b', 1)")
	require.NoError(t, err)
	require.NoError(t, s.Rollback(t.Context()))
	require.Empty(t, f.stored(t))
}

func testEndedSession(t *testing.T, f *fixture) {
	for _, end := range []func(uow.Session) error{
		func(s uow.Session) error { return s.Commit(t.Context(), nil) },
		func(s uow.Session) error { return s.Commit(t.Context(), []uow.Statement{claim("a", nil)}) },
		func(s uow.Session) error { return s.Commit(t.Context(), []uow.Statement{insert("b", 1)}) },
		func(s uow.Session) error { return s.Rollback(t.Context()) },
	} {
		s := f.p.Session()
		if end(s) != nil {
			require.NoError(t, s.Rollback(t.Context()))
		}
		before := f.stored(t)
		require.Error(t, s.Commit(t.Context(), []uow.Statement{insert("late", 1)}))
		require.Error(t, s.Send(t.Context(), []uow.Statement{insert("late", 1)}))
		_, err := s.DB(t.Context())
		require.Error(t, err)
		require.Equal(t, before, f.stored(t))
	}
}

func testReads(t *testing.T, f *fixture) {
	s := f.p.Session()
	require.NoError(t, s.Send(t.Context(), []uow.Statement{insert("a", 1)}))
	require.True(t, s.Began())
	db, err := s.DB(t.Context())
	require.NoError(t, err)
	require.Equal(t, "a=1", content(t, db))
	require.Empty(t, f.stored(t), "others see it after the commit")
	require.NoError(t, s.Send(t.Context(), []uow.Statement{insert("b", 2)}))
	require.Equal(t, "a=1 b=2", content(t, db))
	require.NoError(t, s.Commit(t.Context(), []uow.Statement{insert("c", 3)}))
	require.Equal(t, "a=1 b=2 c=3", f.stored(t))
}

func testDB(t *testing.T, f *fixture) {
	s := f.p.Session()
	db, err := s.DB(t.Context())
	require.NoError(t, err)
	_, err = db.ExecContext(t.Context(), "INSERT INTO things VALUES ('a', 1)")
	require.NoError(t, err)
	err = db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO things VALUES ('b', 2)")
		return err
	})
	require.NoError(t, err)
	errGiveUp := errors.New("give up")
	err = db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO things VALUES ('c', 3)")
		return errors.Join(err, errGiveUp)
	})
	require.ErrorIs(t, err, errGiveUp)
	require.Empty(t, f.stored(t), "the inner transactions are savepoints")
	again, err := s.DB(t.Context())
	require.NoError(t, err)
	require.Equal(t, "a=1 b=2", content(t, again))
	require.NoError(t, s.Commit(t.Context(), nil))
	require.Equal(t, "a=1 b=2", f.stored(t))
}

// The context of the call that happened to begin the transaction may be that of
// one query.
func testDBOutlivesItsContext(t *testing.T, f *fixture) {
	s := f.p.Session()
	ctx, cancel := context.WithCancel(t.Context())
	db, err := s.DB(ctx)
	require.NoError(t, err)
	_, err = db.ExecContext(ctx, "INSERT INTO things VALUES ('a', 1)")
	require.NoError(t, err)
	cancel()
	_, err = db.ExecContext(t.Context(), "INSERT INTO things VALUES ('b', 2)")
	require.NoError(t, err)
	require.NoError(t, s.Commit(t.Context(), nil))
	require.Equal(t, "a=1 b=2", f.stored(t))
}

// PostgreSQL answers the COMMIT of a failed transaction with ROLLBACK, which
// must not pass for success; SQLite undoes the failed statement only.
func testSwallowedError(t *testing.T, f *fixture) {
	s := f.p.Session()
	db, err := s.DB(t.Context())
	require.NoError(t, err)
	_, err = db.ExecContext(t.Context(), "INSERT INTO things VALUES ('a', 1)")
	require.NoError(t, err)
	_, err = db.ExecContext(t.Context(), "INSERT INTO things VALUES ('a', 2)")
	require.Error(t, err)
	if err := s.Commit(t.Context(), nil); err != nil {
		_, unknown := errors.AsType[*uow.CommitUnknownError](err)
		require.False(t, unknown)
		require.NoError(t, s.Rollback(t.Context()))
		require.Empty(t, f.stored(t))
		return
	}
	require.Equal(t, "a=1", f.stored(t))
}

// A deferred constraint fails when the statement's transaction is committed, with the row
// on its way already.
func testRowOfAFailure(t *testing.T, f *fixture) {
	f.exec(t, "CREATE TABLE parts (thing text NOT NULL REFERENCES things (id) DEFERRABLE INITIALLY DEFERRED)")
	var thing string
	err := f.p.DB().NewRaw("INSERT INTO parts VALUES ('none') RETURNING thing").Scan(t.Context(), &thing)
	require.ErrorContains(t, err, "constraint")
	var n int
	require.NoError(t, f.p.DB().NewRaw("SELECT count(*) FROM parts").Scan(t.Context(), &n))
	require.Zero(t, n)
}

func testCancelledBefore(t *testing.T, f *fixture) {
	everyWay(t, func(t *testing.T, way func(context.Context, uow.Session, []uow.Statement) error) {
		s := f.p.Session()
		err := way(ended(t), s, []uow.Statement{insert("a", 1)})
		require.ErrorIs(t, err, context.Canceled)
		_, unknown := errors.AsType[*uow.CommitUnknownError](err)
		require.False(t, unknown, "nothing was sent")
		require.NoError(t, s.Rollback(t.Context()))
		require.Empty(t, f.stored(t))
	})
}

func ended(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func testCancelledWithin(t *testing.T, f *fixture) {
	s := f.p.Session()
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, s.Send(ctx, []uow.Statement{insert("a", 1)}))
	cancel()
	err := s.Commit(ctx, nil)
	require.ErrorIs(t, err, context.Canceled)
	_, unknown := errors.AsType[*uow.CommitUnknownError](err)
	require.False(t, unknown, "COMMIT was not sent")
	require.NoError(t, s.Rollback(t.Context()))
	require.Empty(t, f.stored(t))
}

func testGuardRow(t *testing.T, f *fixture) {
	f.exec(t, "INSERT INTO things VALUES ('effects', 0)")
	errSeen := errors.New("seen before")
	const racers = 8
	for round := range 5 {
		id := fmt.Sprint("message-", round)
		errs := make([]error, racers)
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() {
				s := f.p.Session()
				errs[i] = s.Commit(context.Background(), []uow.Statement{
					claim(id, errSeen),
					statement(1, errors.New("no effect"), "UPDATE things SET n = n + 1 WHERE id = 'effects'"),
				})
				_ = s.Rollback(context.Background())
			})
		}
		wg.Wait()
		won := 0
		for _, err := range errs {
			if err == nil {
				won++
				continue
			}
			require.ErrorIs(t, err, errSeen)
		}
		require.Equal(t, 1, won)
		require.Contains(t, f.stored(t), fmt.Sprint("effects=", round+1))
	}
}

func testIncrements(t *testing.T, f *fixture) {
	f.exec(t, "INSERT INTO things VALUES ('counter', 0)")
	errStale := errors.New("stale")
	const workers, each = 6, 10
	var wg sync.WaitGroup
	failed := make(chan error, workers)
	for w := range workers {
		wg.Go(func() {
			for done := 0; done < each; {
				var n int
				if err := f.p.Reader().NewRaw("SELECT n FROM things WHERE id = 'counter'").Scan(context.Background(), &n); err != nil {
					failed <- err
					return
				}
				s := f.p.Session()
				err := ways[[]string{"commit", "begun", "send"}[w%3]](context.Background(), s, []uow.Statement{
					statement(1, errStale, "UPDATE things SET n = ? WHERE id = 'counter' AND n = ?", n+1, n),
					insert(fmt.Sprintf("%d-%d-%d", n, w, done), n),
				})
				_ = s.Rollback(context.Background())
				switch {
				case err == nil:
					done++
				case !errors.Is(err, errStale):
					failed <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(failed)
	require.NoError(t, <-failed)
	require.Contains(t, f.stored(t), fmt.Sprint("counter=", workers*each))
	require.Len(t, strings.Fields(f.stored(t)), workers*each+1, "a refused increment leaves no row")
}

// A commit that waits for somebody else's lock ends with its context, and does
// not happen afterwards.
func testWaitingCommit(t *testing.T, f *fixture) {
	everyWay(t, func(t *testing.T, way func(context.Context, uow.Session, []uow.Statement) error) {
		err := cancelsWaiting(t, f, way)
		for range 4 { // no answer comes in time on a machine that has stopped
			if _, unknown := errors.AsType[*uow.CommitUnknownError](err); !unknown {
				break
			}
			err = cancelsWaiting(t, f, way)
		}
		_, unknown := errors.AsType[*uow.CommitUnknownError](err)
		require.False(t, unknown, "%v", err)
		require.NotContains(t, f.stored(t), "b=")
		require.NotContains(t, f.stored(t), "10")
	})
}

// cancelsWaiting gives up a commit that waits for another unit, which then commits.
func cancelsWaiting(t *testing.T, f *fixture, way func(context.Context, uow.Session, []uow.Statement) error) error {
	t.Helper()
	f.exec(t, "DELETE FROM things") // also of one that was not known to have been given up
	f.exec(t, "INSERT INTO things VALUES ('a', 1)")
	first := f.p.Session()
	t.Cleanup(func() { _ = first.Rollback(context.Background()) })
	require.NoError(t, first.Send(t.Context(), []uow.Statement{statement(1, errors.New("missed"), "UPDATE things SET n = n + 1 WHERE id = 'a'")}))
	ctx, cancel := context.WithCancel(t.Context())
	second := f.p.Session()
	done := make(chan error, 1)
	go func() {
		done <- way(ctx, second, []uow.Statement{
			statement(1, errors.New("missed"), "UPDATE things SET n = n + 100 WHERE id = 'a'"), insert("b", 1),
		})
	}()
	select {
	case err := <-done:
		require.Fail(t, "it did not wait", "%v", err)
	case <-time.After(50 * time.Millisecond):
	}
	cancel()
	err := <-done
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, first.Commit(t.Context(), nil))
	_ = second.Rollback(t.Context())
	return err
}

// testSignals: who watches hears at once that anything may have happened, and
// from then on of what others commit and signal.
func testSignals(t *testing.T, f *fixture) {
	require.NoError(t, outboxdb.Migrate(t.Context(), f.p.DB(), 0))
	other := f.h.Beside(t, f.p)
	ctx, cancel := context.WithCancel(t.Context())
	heard := make(chan []outbox.Poke, 1000)
	ended := make(chan error, 1)
	go func() { ended <- other.Watch(ctx, func(pokes []outbox.Poke) { heard <- pokes }) }()
	require.Nil(t, <-heard)
	poke := outbox.Poke{Target: "it's \"one\"", Partition: 63}
	for range 3 {
		f.exec(t, "DELETE FROM things")
		f.exec(t, "INSERT INTO things VALUES ('a', 1)")
		f.p.Signal([]outbox.Poke{poke, {Target: "two", Partition: 1}})
		for {
			if pokes := <-heard; pokes == nil || slices.Contains(pokes, poke) {
				break
			}
		}
	}
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	other.Signal([]outbox.Poke{poke}) // on the way when the provider is closed
}
