package postgres_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

// distinct is a statement whose text nobody else has.
func distinct(i int) uow.Statement {
	text := fmt.Sprintf("UPDATE things SET n = n + %d WHERE id = ", i)
	return uow.Statement{Query: prepared{schema.SafeQuery(text+"?", []any{"hot"}), text + "$1", []any{"hot"}}, Rows: -1}
}

// O12: an application may make up statements without end. A connection keeps a bounded
// number of them, those that were used last, and so does the process.
func TestPrepared_O12_IsBounded(t *testing.T) {
	p := open(t, onOne)
	things(t, p)
	require.NoError(t, p.Session().Commit(t.Context(), []uow.Statement{insert("hot")}))
	for i := range 3000 {
		require.NoError(t, p.Session().Commit(t.Context(), []uow.Statement{distinct(i), incrementPrepared("hot")}))
	}
	require.Equal(t, 256, statementsOf(t, p))
	var hot, last bool
	require.NoError(t, p.DB().NewRaw("SELECT bool_or(statement LIKE '%n = n + 1 WHERE id = $1%count(*)%'), bool_or(statement LIKE '%+ 2999 %') FROM pg_prepared_statements").Scan(t.Context(), &hot, &last))
	require.True(t, hot && last, "what is used stays")
	require.LessOrEqual(t, postgres.Texts(p), 1024)
	var all []uow.Statement
	want := 0
	for i := range 300 {
		all, want = append(all, distinct(i)), want+i
	}
	require.NoError(t, p.Session().Commit(t.Context(), all), "more in one unit than a connection keeps")
	require.NoError(t, p.Session().Commit(t.Context(), []uow.Statement{distinct(1)}))
	require.Equal(t, 256, statementsOf(t, p))
	var n int
	require.NoError(t, p.DB().NewRaw("SELECT n FROM things").Scan(t.Context(), &n))
	require.Equal(t, 2999*3000/2+3000+want+1, n)
}

// O12: statements that somebody has deallocated are prepared once more.
func TestPrepared_O12_GoneOnceIsPreparedAgain(t *testing.T) {
	p := open(t, onOne)
	things(t, p)
	require.NoError(t, p.Session().Commit(t.Context(), []uow.Statement{insertPrepared("a"), incrementPrepared("a")}))
	exec(t, p, "DEALLOCATE ALL")
	for range 2 {
		require.NoError(t, p.Session().Commit(t.Context(), []uow.Statement{incrementPrepared("a")}))
	}
	require.Equal(t, 1, statementsOf(t, p))
	require.NoError(t, p.Session().Commit(t.Context(), []uow.Statement{insertPrepared("b"), incrementPrepared("b")}))
	require.Equal(t, 2, statementsOf(t, p))
}

// O12: only what happens again and again is a pooler, which is told of once. After a
// while it is tried again.
func TestPrepared_O12_PausesBehindAPooler(t *testing.T) {
	var log bytes.Buffer
	p := open(t, onOne, func(c *postgres.Config) { c.Name, c.Logger = "books", slog.New(slog.NewTextHandler(&log, nil)) })
	things(t, p)
	require.NoError(t, p.Session().Commit(t.Context(), []uow.Statement{insert("a")}))
	commit := func() {
		t.Helper()
		require.NoError(t, p.Session().Commit(t.Context(), []uow.Statement{incrementPrepared("a")}))
	}
	elsewhere := func() {
		commit()
		exec(t, p, "DEALLOCATE ALL")
		commit()
	}
	elsewhere()
	require.Empty(t, log.String())
	elsewhere()
	for range 3 {
		elsewhere()
		require.Zero(t, statementsOf(t, p))
	}
	require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
	require.Regexp(t, "level=WARN .*as behind a pooler.*provider=books for=10m0s", log.String())

	postgres.EndPause(p)
	commit()
	require.Equal(t, 1, statementsOf(t, p))
	elsewhere()
	require.Zero(t, statementsOf(t, p))
	require.Equal(t, 2, strings.Count(log.String(), "\n"), log.String())
	var n int
	require.NoError(t, p.DB().NewRaw("SELECT n FROM things").Scan(t.Context(), &n))
	require.Equal(t, 13, n, "each happened once")
}
