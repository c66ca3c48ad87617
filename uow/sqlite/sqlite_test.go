package sqlite_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"go.uber.org/goleak"
	"go.yaml.in/yaml/v3"

	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/sqlite"
	"github.com/waybill-go/waybill/uow/uowtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, path string) uow.Provider {
	p, err := sqlite.Open(t.Context(), sqlite.Config{Path: path})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func TestProvider(t *testing.T) {
	paths := map[uow.Provider]string{}
	uowtest.Run(t, uowtest.Config{
		Open: func(t *testing.T) uow.Provider {
			path := filepath.Join(t.TempDir(), "test.db")
			p := open(t, path)
			paths[p] = path
			return p
		},
		Beside: func(t *testing.T, p uow.Provider) uow.Provider { return open(t, paths[p]) },
		InUse:  func(p uow.Provider) int { return p.DB().Stats().InUse + p.Reader().Stats().InUse },
	})
}

func TestOpenExplains(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "notes.txt")
	require.NoError(t, os.WriteFile(text, []byte("This is not a database, but long enough to have had a header."), 0o600))
	for name, test := range map[string]struct {
		path string
		says []string
	}{
		"nothing":        {"", []string{"Path is missing"}},
		"memory":         {":memory:", []string{":memory:", "t.TempDir()"}},
		"URI":            {"file:test.db?mode=memory", []string{"plain path"}},
		"no directory":   {filepath.Join(dir, "none", "test.db"), []string{filepath.Join(dir, "none"), "create it"}},
		"file as a dir":  {filepath.Join(text, "test.db"), []string{text}},
		"directory":      {dir, []string{dir, "not a file"}},
		"not a database": {text, []string{text, "not a SQLite database"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := sqlite.Open(t.Context(), sqlite.Config{Name: "books", Path: test.path})
			require.ErrorContains(t, err, `provider "books"`)
			for _, s := range test.says {
				require.ErrorContains(t, err, s)
			}
		})
	}
}

func TestOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "odd name? 100%#1&.db")
	p := open(t, path)
	require.Equal(t, "default", p.Name())
	_, err := p.DB().ExecContext(t.Context(), "CREATE TABLE things (id text PRIMARY KEY, n integer)")
	require.NoError(t, err)
	require.FileExists(t, path)
	for name, want := range map[string]string{"journal_mode": "wal", "synchronous": "2", "foreign_keys": "1", "busy_timeout": "10000"} {
		var have string
		require.NoError(t, p.DB().NewRaw("PRAGMA "+name).Scan(t.Context(), &have))
		require.Equal(t, want, have, name)
	}
	_, err = p.Reader().ExecContext(t.Context(), "INSERT INTO things VALUES ('a', 1)")
	require.ErrorContains(t, err, "readonly")
	var found int
	require.NoError(t, open(t, path).Reader().NewRaw("SELECT count(*) FROM things").Scan(t.Context(), &found))
}

type settings string

func (s settings) Decode(into any) error { return yaml.Unmarshal([]byte(s), into) }

func TestFromSettings(t *testing.T) {
	p, err := sqlite.FromSettings(t.Context(), "books", settings("path: "+filepath.Join(t.TempDir(), "books.db")))
	require.NoError(t, err)
	require.Equal(t, "books", p.Name())
	require.NoError(t, p.Close())
	_, err = sqlite.FromSettings(t.Context(), "books", settings("path: [1]"))
	require.Error(t, err)
}

func begin(t *testing.T, p uow.Provider) uow.Session {
	t.Helper()
	s := p.Session()
	_, err := s.DB(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Rollback(context.Background())) })
	return s
}

// A unit inside a unit, by the outer context, would wait for itself for ever.
func TestWriterIsBusy(t *testing.T) {
	p := open(t, filepath.Join(t.TempDir(), "test.db"))
	begin(t, p)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := p.Session().DB(ctx)
	require.ErrorIs(t, err, context.Canceled)

	sqlite.SetWriterTimeout(p, 20*time.Millisecond)
	_, err = p.Session().DB(t.Context())
	require.ErrorContains(t, err, "second unit of work")
	require.False(t, p.Retryable(err))
}

// Another process holds the file longer than busy_timeout.
func TestBusyFileIsRetryable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	one, two := open(t, path), open(t, path)
	begin(t, one)
	_, err := two.DB().ExecContext(t.Context(), "PRAGMA busy_timeout = 20")
	require.NoError(t, err)
	_, err = two.Session().DB(t.Context())
	require.Error(t, err)
	require.True(t, two.Retryable(err), "%v", err)
	require.False(t, two.Retryable(nil))
	require.False(t, two.Retryable(errors.New("database is locked")))
}

// F-62: two processes on one file wait for each other, and neither fails.
// Conformance: U-23.
func TestTwoProcesses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	providers := []uow.Provider{open(t, path), open(t, path)}
	_, err := providers[0].DB().ExecContext(t.Context(), "CREATE TABLE things (id text PRIMARY KEY, n integer)")
	require.NoError(t, err)
	_, err = providers[0].DB().ExecContext(t.Context(), "INSERT INTO things VALUES ('counter', 0)")
	require.NoError(t, err)
	const each = 40
	errs := make(chan error, 2*each)
	var wg sync.WaitGroup
	for _, p := range providers {
		wg.Go(func() {
			for range each {
				errs <- p.Session().Commit(context.Background(), []uow.Statement{
					{Query: bun.SafeQuery("UPDATE things SET n = n + 1 WHERE id = 'counter'"), Rows: 1, Else: errors.New("missed")},
				})
			}
		})
	}
	wg.Wait()
	for range cap(errs) {
		require.NoError(t, <-errs)
	}
	var n int
	require.NoError(t, providers[1].Reader().NewRaw("SELECT n FROM things").Scan(t.Context(), &n))
	require.Equal(t, 2*each, n)
}

// A statement that is interrupted takes the transaction with it; the writer is
// of use afterwards.
func TestInterruptedTransaction(t *testing.T) {
	p := open(t, filepath.Join(t.TempDir(), "test.db"))
	_, err := p.DB().ExecContext(t.Context(), "CREATE TABLE things (id text PRIMARY KEY, n integer)")
	require.NoError(t, err)
	s := p.Session()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err = s.Commit(ctx, []uow.Statement{
		{Query: bun.SafeQuery("INSERT INTO things VALUES ('a', 1)"), Rows: -1},
		{Query: bun.SafeQuery("INSERT INTO things WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT 'x' || n, n FROM c"), Rows: -1},
	})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, s.Rollback(t.Context()))
	require.NoError(t, p.Session().Commit(t.Context(), []uow.Statement{{Query: bun.SafeQuery("INSERT INTO things VALUES ('b', 1)"), Rows: -1}}))
	var ids []string
	require.NoError(t, p.Reader().NewRaw("SELECT id FROM things").Scan(t.Context(), &ids))
	require.Equal(t, []string{"b"}, ids)
}
