package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/netfault"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

func statement(rows int64, otherwise error, query string, args ...any) uow.Statement {
	return uow.Statement{Query: bun.SafeQuery(query, args...), Rows: rows, Else: otherwise}
}

func insert(id string) uow.Statement {
	return statement(-1, nil, "INSERT INTO things (id, n) VALUES (?, 0)", id)
}

func increment(id string) uow.Statement {
	return statement(1, errors.New("missed "+id), "UPDATE things SET n = n + 1 WHERE id = ?", id)
}

func exec(t *testing.T, p uow.Provider, query string, args ...any) {
	t.Helper()
	_, err := p.DB().ExecContext(t.Context(), query, args...)
	require.NoError(t, err)
}

func things(t *testing.T, p uow.Provider) {
	t.Helper()
	exec(t, p, "CREATE TABLE things (id text PRIMARY KEY, n integer NOT NULL)")
}

func ids(t *testing.T, p uow.Provider) (ids []string) {
	t.Helper()
	require.NoError(t, p.Reader().NewRaw("SELECT id FROM things ORDER BY id").Scan(t.Context(), &ids))
	return ids
}

func isUnknown(err error) bool {
	_, ok := errors.AsType[*uow.CommitUnknownError](err)
	return ok
}

func noneInUse(t *testing.T, p uow.Provider) {
	t.Helper()
	waittest.Until(t, func() bool { return postgres.Pool(p).Stat().AcquiredConns() == 0 })
}

// A whole unit is one round trip, also one that is refused.
func TestRoundTrips(t *testing.T) {
	p, x := openThrough(t)
	things(t, p)
	trips := func(f func()) int64 {
		before := x.Trips()
		f()
		return x.Trips() - before
	}
	statements := []uow.Statement{insert("a"), increment("a"), insert("b"), insert("c")}
	require.EqualValues(t, 1, trips(func() {
		require.NoError(t, p.Session().Commit(t.Context(), statements))
	}))
	require.EqualValues(t, 1, trips(func() {
		s := p.Session()
		require.Error(t, s.Commit(t.Context(), []uow.Statement{increment("none"), insert("d")}))
		require.NoError(t, s.Rollback(t.Context()))
	}))
	require.EqualValues(t, 0, trips(func() {
		s := p.Session()
		require.NoError(t, s.Commit(t.Context(), nil))
		require.NoError(t, s.Rollback(t.Context()))
	}))
	require.EqualValues(t, 4, trips(func() { // BEGIN, statements, statements, COMMIT
		s := p.Session()
		require.NoError(t, s.Send(t.Context(), []uow.Statement{insert("e"), increment("e")}))
		require.NoError(t, s.Commit(t.Context(), []uow.Statement{insert("f"), increment("f")}))
	}))
	require.Equal(t, []string{"a", "b", "c", "e", "f"}, ids(t, p))
}

func TestLazy(t *testing.T) {
	p := open(t)
	before := postgres.Pool(p).Stat().AcquireCount()
	require.NoError(t, p.Session().Commit(t.Context(), nil))
	require.NoError(t, p.Session().Send(t.Context(), nil))
	require.NoError(t, p.Session().Rollback(t.Context()))
	require.Equal(t, before, postgres.Pool(p).Stat().AcquireCount(), "no statement, no connection")
}

// F-55: whether the request or the answer was lost can't be told apart from here.
func TestCommitUnknown(t *testing.T) {
	for name, begun := range map[string]bool{"at once": false, "begun": true} {
		for _, f := range []netfault.Fault{netfault.CutBefore, netfault.CutAfter, netfault.Hang} {
			t.Run(fmt.Sprint(name, f), func(t *testing.T) {
				p, x := openThrough(t)
				things(t, p)
				s := p.Session()
				statements := []uow.Statement{insert("a"), increment("a")}
				if begun {
					require.NoError(t, s.Send(t.Context(), statements))
					statements = nil
				}
				ctx := t.Context()
				if f == netfault.Hang {
					ctx = untilSent(t, x)
				}
				x.Set(f)
				err := s.Commit(ctx, statements)
				require.True(t, isUnknown(err), "%v", err)
				require.False(t, p.Retryable(err))
				if f == netfault.Hang {
					require.ErrorIs(t, err, context.Canceled)
				}
				require.NoError(t, s.Rollback(t.Context()))
				noneInUse(t, p)
				if f == netfault.CutAfter {
					require.Equal(t, []string{"a"}, ids(t, p))
				} else {
					require.Empty(t, ids(t, p))
				}
			})
		}
	}
}

// untilSent is done once another request has been sent through x.
func untilSent(t *testing.T, x *netfault.Relay) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	before := x.Trips()
	go func() {
		for x.Trips() == before && ctx.Err() == nil {
			<-time.After(time.Millisecond)
		}
		cancel()
	}()
	return ctx
}

// A connection that is lost before COMMIT was sent has rolled back.
func TestConnectionLostBeforeCommit(t *testing.T) {
	for _, f := range []netfault.Fault{netfault.CutBefore, netfault.CutAfter} {
		p, x := openThrough(t)
		things(t, p)
		s := p.Session()
		_, err := s.DB(t.Context())
		require.NoError(t, err)
		x.Set(f)
		err = s.Commit(t.Context(), []uow.Statement{insert("a")})
		require.Error(t, err)
		require.False(t, isUnknown(err), "%v", err)
		_ = s.Rollback(t.Context())
		noneInUse(t, p)
		require.Empty(t, ids(t, p))
	}
}

func TestRollbackOfBrokenConnection(t *testing.T) {
	p, x := openThrough(t)
	things(t, p)
	s := p.Session()
	require.NoError(t, s.Send(t.Context(), []uow.Statement{insert("a")}))
	x.Set(netfault.Hang)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.Error(t, s.Rollback(ctx))
	noneInUse(t, p)
	require.Empty(t, ids(t, p))
	waittest.Until(t, func() bool { return postgres.Pool(p).Stat().TotalConns() <= 1 }, "it was not put back")
}

// backend waits until a session of p waits for a lock, and returns its process.
func waiting(t *testing.T, p uow.Provider) (pid int) {
	t.Helper()
	waittest.Until(t, func() bool {
		return p.Reader().NewRaw("SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%'||current_schema()||'%'").Scan(t.Context(), &pid) == nil
	})
	return pid
}

// The server ends the connection while the unit waits at one of its statements.
func TestBackendTerminated(t *testing.T) {
	for name, test := range map[string]struct {
		statements []uow.Statement
		unknown    bool
	}{
		"at the first of two": {[]uow.Statement{increment("locked"), insert("b")}, false},
		"at the last":         {[]uow.Statement{insert("b"), increment("locked")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := open(t)
			things(t, p)
			require.NoError(t, p.Session().Commit(t.Context(), []uow.Statement{insert("locked")}))
			holder := p.Session()
			t.Cleanup(func() { _ = holder.Rollback(context.Background()) })
			require.NoError(t, holder.Send(t.Context(), []uow.Statement{increment("locked")}))
			var marker string
			require.NoError(t, p.Reader().NewRaw("SELECT current_schema()").Scan(t.Context(), &marker))
			statements := append([]uow.Statement{}, test.statements...)
			for i := range statements {
				statements[i].Query = bun.SafeQuery("? -- "+marker+"\n", statements[i].Query)
			}
			s := p.Session()
			done := make(chan error, 1)
			go func() { done <- s.Commit(context.Background(), statements) }()
			exec(t, p, "SELECT pg_terminate_backend(?)", waiting(t, p))
			err := <-done
			require.Error(t, err)
			require.Equal(t, test.unknown, isUnknown(err), "%v", err)
			require.NoError(t, holder.Rollback(t.Context()))
			noneInUse(t, p)
			require.Equal(t, []string{"locked"}, ids(t, p))
		})
	}
}

// What only COMMIT finds is a failure, not an unknown outcome.
func TestCommitRefused(t *testing.T) {
	for name, begun := range map[string]bool{"at once": false, "begun": true} {
		t.Run(name, func(t *testing.T) {
			p := open(t)
			exec(t, p, "CREATE TABLE things (id text, n integer, CONSTRAINT one UNIQUE (id) DEFERRABLE INITIALLY DEFERRED)")
			s := p.Session()
			statements := []uow.Statement{insert("a"), insert("a")}
			if begun {
				require.NoError(t, s.Send(t.Context(), statements))
				statements = nil
			}
			err := s.Commit(t.Context(), statements)
			require.ErrorContains(t, err, "23505")
			require.False(t, isUnknown(err))
			require.NoError(t, s.Rollback(t.Context()))
			noneInUse(t, p)
			require.Empty(t, ids(t, p))
		})
	}
}

// F-27, on the side of the database: who is chosen as a victim may try again.
func TestRetryable(t *testing.T) {
	t.Run("deadlock", func(t *testing.T) {
		p := open(t, func(c *postgres.Config) { c.DSN += "?options=-c%20deadlock_timeout%3D20ms" })
		things(t, p)
		require.NoError(t, p.Session().Commit(t.Context(), []uow.Statement{insert("a"), insert("b")}))
		one, two := p.Session(), p.Session()
		require.NoError(t, one.Send(t.Context(), []uow.Statement{increment("a")}))
		require.NoError(t, two.Send(t.Context(), []uow.Statement{increment("b")}))
		done := make(chan error, 1)
		go func() {
			err := one.Commit(context.Background(), []uow.Statement{increment("b")})
			if err != nil {
				_ = one.Rollback(context.Background())
			}
			done <- err
		}()
		err := two.Commit(t.Context(), []uow.Statement{increment("a")})
		if err != nil {
			require.NoError(t, two.Rollback(t.Context()))
		}
		other := <-done
		if err == nil {
			err, other = other, err
		}
		require.NoError(t, other)
		require.Error(t, err)
		require.True(t, p.Retryable(err), "%v", err)
		require.False(t, isUnknown(err))
	})
	t.Run("serialization", func(t *testing.T) {
		p := open(t, func(c *postgres.Config) { c.DSN += "?default_transaction_isolation=serializable" })
		things(t, p)
		sum := func(s uow.Session) {
			db, err := s.DB(t.Context())
			require.NoError(t, err)
			var n int
			require.NoError(t, db.NewRaw("SELECT count(*) FROM things").Scan(t.Context(), &n))
		}
		one, two := p.Session(), p.Session()
		sum(one)
		sum(two)
		require.NoError(t, one.Send(t.Context(), []uow.Statement{insert("a")}))
		require.NoError(t, two.Send(t.Context(), []uow.Statement{insert("b")}))
		require.NoError(t, one.Commit(t.Context(), nil))
		err := two.Commit(t.Context(), nil)
		require.Error(t, err)
		require.True(t, p.Retryable(err), "%v", err)
		require.False(t, isUnknown(err))
		require.NoError(t, two.Rollback(t.Context()))
		require.Equal(t, []string{"a"}, ids(t, p))
	})
	p := open(t)
	require.False(t, p.Retryable(nil))
	require.False(t, p.Retryable(errors.New("any other")))
}

// Outside a unit too, a statement whose answer was lost is not sent again.
func TestNothingIsSentTwice(t *testing.T) {
	p, x := openThrough(t)
	things(t, p)
	exec(t, p, "INSERT INTO things VALUES ('a', 0)")
	x.Set(netfault.CutAfter)
	_, err := p.DB().ExecContext(t.Context(), "UPDATE things SET n = n + 1")
	require.Error(t, err)
	var n int
	require.NoError(t, p.Reader().NewRaw("SELECT n FROM things").Scan(t.Context(), &n))
	require.Equal(t, 1, n)
}

// A statement's own text must not pass for a guard that failed.
func TestGuardIsNotImitated(t *testing.T) {
	p := open(t)
	things(t, p)
	s := p.Session()
	errElse := errors.New("missed")
	err := s.Commit(t.Context(), []uow.Statement{statement(1, errElse, "INSERT INTO things VALUES ('a', 'x'::int)")})
	require.ErrorContains(t, err, "22P02")
	require.NotErrorIs(t, err, errElse)
	require.NoError(t, s.Rollback(t.Context()))
}

// An error that was not returned isn't found again by its cause: what PostgreSQL says of the
// statements after it, and of the commit, is that the transaction is aborted.
func TestCommit_SaysThatAnErrorWasNotReturned(t *testing.T) {
	t.Parallel()
	p := open(t)
	things(t, p)
	for what, statements := range map[string][]uow.Statement{"something to store": {insert("a")}, "nothing more": nil} {
		s := p.Session()
		db, err := s.DB(t.Context())
		require.NoError(t, err)
		_, err = db.ExecContext(t.Context(), "INSERT INTO nowhere VALUES (1)")
		require.Error(t, err)
		require.ErrorContains(t, s.Commit(t.Context(), statements), "a statement of the unit of work has failed and its error was not returned", what)
		require.NoError(t, s.Rollback(t.Context()))
	}
	require.Empty(t, ids(t, p))
}
