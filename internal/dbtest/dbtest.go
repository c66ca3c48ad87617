// Package dbtest opens databases for tests, each a test's own.
package dbtest

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
	"github.com/waybill-go/waybill/uow/sqlite"
)

// Environment is the value of a variable that scripts/services prints, without which the
// test fails.
func Environment(t testing.TB, name string) string {
	t.Helper()
	value := os.Getenv(name)
	require.NotEmpty(t, value, `%s is not set: run scripts/test, or eval "$(scripts/services up)"`, name)
	return value
}

// Postgres opens an empty schema on the server that WAYBILL_POSTGRES names. It is dropped
// when the test ends. The Config is for who opens it once more.
func Postgres(t testing.TB, change ...func(*postgres.Config)) (uow.Provider, postgres.Config) {
	t.Helper()
	cfg := postgres.Config{DSN: Environment(t, "WAYBILL_POSTGRES"), Schema: "test_" + strings.ReplaceAll(uuid.NewString(), "-", "")}
	for _, c := range change {
		c(&cfg)
	}
	p, err := postgres.Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := p.DB().ExecContext(context.Background(), "DROP SCHEMA IF EXISTS ? CASCADE", bun.Ident(cfg.Schema))
		require.NoError(t, err)
		require.NoError(t, p.Close())
	})
	return p, cfg
}

// Pooled makes a database of the test's own, as a pooler passes no search_path on, and
// returns the DSNs past PgBouncer, which WAYBILL_PGBOUNCER names, and through it.
func Pooled(t testing.TB) (past, through string) {
	t.Helper()
	server, cfg := Postgres(t)
	name := cfg.Schema
	_, err := server.DB().ExecContext(t.Context(), "CREATE DATABASE ?", bun.Ident(name))
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := server.DB().ExecContext(context.Background(), "DROP DATABASE ? WITH (FORCE)", bun.Ident(name))
		require.NoError(t, err)
	})
	to := func(variable string) string {
		u, err := url.Parse(Environment(t, variable))
		require.NoError(t, err)
		u.Path = "/" + name
		return u.String()
	}
	return to("WAYBILL_POSTGRES"), to("WAYBILL_PGBOUNCER")
}

// SQLite opens a database in a file of the test's own.
func SQLite(t testing.TB, change ...func(*sqlite.Config)) uow.Provider {
	t.Helper()
	cfg := sqlite.Config{Path: filepath.Join(t.TempDir(), "test.db")}
	for _, c := range change {
		c(&cfg)
	}
	p, err := sqlite.Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// With has the file of [SQLite] begin with the tables of features. To make them takes a
// quarter of a second with the race detector, so that a process does it once for all tests.
func With(t testing.TB, features ...migrate.Set) func(*sqlite.Config) {
	return func(c *sqlite.Config) {
		t.Helper()
		require.NoError(t, os.WriteFile(c.Path, made.file(t, features), 0o600))
	}
}

// made are files with tables and nothing in them, by the names of their features.
var made tables

type tables struct {
	mu    sync.Mutex
	files map[string][]byte
}

func (m *tables) file(t testing.TB, features []migrate.Set) []byte {
	t.Helper()
	var names []string
	for _, f := range features {
		names = append(names, f.Feature)
	}
	name := strings.Join(names, " ")
	m.mu.Lock()
	defer m.mu.Unlock()
	if file, ok := m.files[name]; ok {
		return file
	}
	p := SQLite(t)
	for _, f := range features {
		require.NoError(t, f.Up(t.Context(), p.DB()))
	}
	path := filepath.Join(t.TempDir(), "tables.db")
	_, err := p.DB().ExecContext(t.Context(), "VACUUM INTO ?", path)
	require.NoError(t, err)
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	if m.files == nil {
		m.files = map[string][]byte{}
	}
	m.files[name] = file
	return file
}
