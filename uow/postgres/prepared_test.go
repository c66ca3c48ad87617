package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/internal/netfault"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

// prepared is a statement that can be sent in either way.
type prepared struct {
	schema.QueryWithArgs
	query  string
	values []any
}

func (p prepared) Prepared() (string, []any, error) { return p.query, p.values, nil }

func insertPrepared(id string) uow.Statement {
	return uow.Statement{Query: prepared{schema.SafeQuery("INSERT INTO things (id, n) VALUES (?, 0)", []any{id}), "INSERT INTO things (id, n) VALUES ($1, 0)", []any{id}}, Rows: -1}
}

func incrementPrepared(id string) uow.Statement {
	return uow.Statement{
		Query: prepared{schema.SafeQuery("UPDATE things SET n = n + 1 WHERE id = ?", []any{id}), "UPDATE things SET n = n + 1 WHERE id = $1", []any{id}},
		Rows:  1, Else: errors.New("missed " + id),
	}
}

// onOne leaves one connection.
func onOne(c *postgres.Config) { c.MaxConns = 1 }

func statementsOf(t *testing.T, p uow.Provider) (n int) {
	t.Helper()
	require.NoError(t, p.DB().NewRaw("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'waybill%'").Scan(t.Context(), &n))
	return n
}

// A unit is one round trip from the first on, which also prepares, and one that
// is refused leaves the connection knowing what it knows.
func TestPrepared(t *testing.T) {
	p, x := openThrough(t, onOne)
	things(t, p)
	commit := func(statements ...uow.Statement) error {
		t.Helper()
		before := x.Trips()
		err := p.Session().Commit(t.Context(), statements)
		require.EqualValues(t, 1, x.Trips()-before)
		return err
	}
	require.EqualError(t, commit(incrementPrepared("none"), insertPrepared("a")), "missed none")
	require.Equal(t, 1, statementsOf(t, p), "what is behind a failure was not prepared")
	require.NoError(t, commit(insertPrepared("a"), incrementPrepared("a"), insertPrepared("b")))
	require.Equal(t, 2, statementsOf(t, p))
	require.EqualError(t, commit(insertPrepared("c"), incrementPrepared("a"), incrementPrepared("gone")), "missed gone")
	require.NoError(t, commit(insertPrepared("d"), insert("e")), "one that can't be prepared")
	require.Equal(t, []string{"a", "b", "d", "e"}, ids(t, p))
	require.Equal(t, 2, statementsOf(t, p))
	require.ErrorContains(t, p.Session().Commit(t.Context(), []uow.Statement{insertPrepared("\x00")}), "NUL")
}

// A pooler gives a transaction to a connection on which others have prepared, or
// nobody: the unit is committed all the same, and once.
// Conformance: F-52.
func TestPrepared_BehindAPooler(t *testing.T) {
	for name, elsewhere := range map[string]func(*testing.T, uow.Provider){
		"which doesn't know the statement": func(t *testing.T, p uow.Provider) { exec(t, p, "DEALLOCATE ALL") },
		"which knows it already": func(t *testing.T, p uow.Provider) {
			c, err := postgres.Pool(p).Acquire(t.Context())
			require.NoError(t, err)
			defer c.Release()
			clear(c.Conn().PgConn().CustomData())
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := open(t, onOne)
			things(t, p)
			require.NoError(t, p.Session().Commit(t.Context(), []uow.Statement{insertPrepared("a")}))
			elsewhere(t, p)
			for _, id := range []string{"b", "c"} {
				require.NoError(t, p.Session().Commit(t.Context(), []uow.Statement{insertPrepared(id), incrementPrepared(id)}))
			}
			require.EqualError(t, p.Session().Commit(t.Context(), []uow.Statement{insertPrepared("d"), incrementPrepared("none")}), "missed none")
			require.Equal(t, []string{"a", "b", "c"}, ids(t, p))
		})
	}
}

// F-55, for a pipeline.
func TestPrepared_CommitUnknown(t *testing.T) {
	for _, f := range []netfault.Fault{netfault.CutBefore, netfault.CutAfter, netfault.Hang} {
		t.Run(fmt.Sprint(f), func(t *testing.T) {
			p, x := openThrough(t)
			things(t, p)
			ctx := t.Context()
			if f == netfault.Hang {
				ctx = untilSent(t, x)
			}
			x.Set(f)
			err := p.Session().Commit(ctx, []uow.Statement{insertPrepared("a"), incrementPrepared("a")})
			require.True(t, isUnknown(err), "%v", err)
			noneInUse(t, p)
			if f == netfault.CutAfter {
				require.Equal(t, []string{"a"}, ids(t, p))
			} else {
				require.Empty(t, ids(t, p))
			}
		})
	}
}

// The server ends the connection while the first of two statements waits.
func TestPrepared_BackendTerminated(t *testing.T) {
	p := open(t)
	things(t, p)
	require.NoError(t, p.Session().Commit(t.Context(), []uow.Statement{insert("locked")}))
	holder := p.Session()
	db, err := holder.DB(t.Context())
	require.NoError(t, err)
	var pid int
	require.NoError(t, db.NewRaw("SELECT pg_backend_pid() FROM things WHERE id = 'locked' FOR UPDATE").Scan(t.Context(), &pid))
	done := make(chan error, 1)
	go func() {
		done <- p.Session().Commit(context.Background(), []uow.Statement{incrementPrepared("locked"), insertPrepared("b")})
	}()
	waittest.Until(t, func() bool {
		var ended bool
		err := p.Reader().NewRaw("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE ? = ANY (pg_blocking_pids(pid))", pid).Scan(t.Context(), &ended)
		return err == nil && ended
	})
	err = <-done
	require.Error(t, err)
	require.False(t, isUnknown(err), "%v", err)
	require.NoError(t, holder.Rollback(t.Context()))
	require.Equal(t, []string{"locked"}, ids(t, p))
}

// What only the commit finds is a failure, not an unknown outcome.
func TestPrepared_CommitRefused(t *testing.T) {
	p := open(t)
	exec(t, p, "CREATE TABLE things (id text, n integer, CONSTRAINT one UNIQUE (id) DEFERRABLE INITIALLY DEFERRED)")
	err := p.Session().Commit(t.Context(), []uow.Statement{insertPrepared("a"), insertPrepared("a")})
	require.ErrorContains(t, err, "23505")
	require.False(t, isUnknown(err))
	noneInUse(t, p)
	require.Empty(t, ids(t, p))
}
