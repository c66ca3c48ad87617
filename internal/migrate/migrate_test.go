package migrate_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	_ "modernc.org/sqlite"

	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/uow/postgres"
)

// databases runs a test on an empty database of each kind. again opens it once
// more, as another process would.
func databases(t *testing.T, test func(t *testing.T, again func() *bun.DB)) {
	t.Run("postgres", func(t *testing.T) {
		dsn := os.Getenv("WAYBILL_POSTGRES")
		require.NotEmpty(t, dsn, "run scripts/test, or eval \"$(scripts/services up)\"")
		schema := strings.ToLower(fmt.Sprintf("migrate_%d_%s", os.Getpid(), strings.TrimPrefix(strings.Split(t.Name(), "/")[0], "Test")))
		cfg, err := pgx.ParseConfig(dsn)
		require.NoError(t, err)
		cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
		cfg.RuntimeParams["search_path"] = schema
		open := func() *bun.DB {
			db := bun.NewDB(stdlib.OpenDB(*cfg), pgdialect.New())
			t.Cleanup(func() { require.NoError(t, db.Close()) })
			return db
		}
		db := open()
		_, err = db.ExecContext(t.Context(), "CREATE SCHEMA ?", bun.Ident(schema))
		require.NoError(t, err)
		t.Cleanup(func() {
			_, err := db.ExecContext(context.Background(), "DROP SCHEMA ? CASCADE", bun.Ident(schema))
			require.NoError(t, err)
		})
		test(t, open)
	})
	t.Run("sqlite", func(t *testing.T) {
		dsn := "file:" + filepath.Join(t.TempDir(), "test.db") + "?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)"
		open := func() *bun.DB {
			raw, err := sql.Open("sqlite", dsn)
			require.NoError(t, err)
			raw.SetMaxOpenConns(1)
			db := bun.NewDB(raw, sqlitedialect.New())
			t.Cleanup(func() { require.NoError(t, db.Close()) })
			return db
		}
		require.NoError(t, open().PingContext(t.Context())) // the switch to WAL doesn't wait for its turn
		test(t, open)
	})
}

func set(files ...string) migrate.Set {
	fsys := fstest.MapFS{}
	for i, sql := range files {
		for _, dir := range []string{"postgres", "sqlite"} {
			fsys[fmt.Sprintf("%s/%04d_step.sql", dir, i+1)] = &fstest.MapFile{Data: []byte(sql)}
		}
	}
	return migrate.Set{Feature: "things", Files: fsys}
}

const (
	first  = "CREATE TABLE things (id text PRIMARY KEY, note text DEFAULT 'why; ? not');\nCREATE INDEX things_note ON things (note);\n"
	second = "-- a comment; with a semicolon\nALTER TABLE things ADD COLUMN extra text;\n"
	broken = "CREATE TABLE others (id text); INSERT INTO nothing VALUES (1);"
)

// F-59: new code on old tables, and old code on new ones, refuse with the remedy.
func TestUpAppliesWhatIsMissing(t *testing.T) {
	databases(t, func(t *testing.T, again func() *bun.DB) {
		db := again()
		old, current := set(first), set(first, second)

		err := current.Check(t.Context(), db)
		require.Equal(t, &migrate.SchemaError{Feature: "things", Need: 2}, err)
		require.ErrorContains(t, err, "waybill migrate")

		require.NoError(t, old.Up(t.Context(), db))
		require.NoError(t, old.Check(t.Context(), db))
		err = current.Check(t.Context(), db)
		require.Equal(t, &migrate.SchemaError{Feature: "things", Have: 1, Need: 2}, err)
		require.EqualError(t, err, "tables of things are at version 1, this build needs 2; run `waybill migrate` or engine.Migrate")

		require.NoError(t, current.Up(t.Context(), db))
		require.NoError(t, current.Up(t.Context(), db), "a second run changes nothing")
		require.NoError(t, current.Check(t.Context(), db))
		_, err = db.ExecContext(t.Context(), "INSERT INTO things (id, extra) VALUES ('a', 'b')")
		require.NoError(t, err)

		newer := &migrate.SchemaError{Feature: "things", Have: 2, Need: 1, Oldest: 2}
		require.Equal(t, newer, old.Check(t.Context(), db))
		require.EqualError(t, newer, "tables of things are at version 2, this build knows only 1; deploy a newer build, which knows 2 at least")
		require.Equal(t, newer, old.Up(t.Context(), db), "an old build leaves newer tables alone")

		other := current
		other.Feature = "others"
		require.Equal(t, &migrate.SchemaError{Feature: "others", Need: 2}, other.Check(t.Context(), db))
	})
}

// O15: an older build that each newer file tolerates starts, migrates nothing and is
// refused by none; one that a single file doesn't tolerate is.
func TestCheck_O15_OlderBuildsThatAreTolerated(t *testing.T) {
	databases(t, func(t *testing.T, again func() *bun.DB) {
		const third = "-- makes room\n--  tolerates: 1 \nCREATE TABLE more (id text);\n"
		db := again()
		one, two, three := set(first), set(first, second), set(first, second, third)
		require.NoError(t, two.Up(t.Context(), db))
		require.NoError(t, three.Up(t.Context(), db))
		require.NoError(t, three.Check(t.Context(), db))
		require.NoError(t, two.Check(t.Context(), db))
		require.NoError(t, two.Up(t.Context(), db), "there is nothing that it has to do")
		steps, err := two.Missing(t.Context(), db)
		require.NoError(t, err)
		require.Empty(t, steps)
		require.Equal(t, &migrate.SchemaError{Feature: "things", Have: 3, Need: 1, Oldest: 2}, one.Check(t.Context(), db), "the second file doesn't tolerate it")
		require.NoError(t, three.Up(t.Context(), db))

		four := set(first, second, third, "CREATE TABLE last (id text);")
		script(t, db, four)
		require.NoError(t, four.Check(t.Context(), db))
		require.Equal(t, &migrate.SchemaError{Feature: "things", Have: 4, Need: 2, Oldest: 4}, two.Check(t.Context(), db), "without the line nothing is tolerated")
	})
}

// O15: so it is where a script has migrated, and where the table of versions was made
// by a build that knew nothing of it.
func TestCheck_O15_TablesOfEarlierBuilds(t *testing.T) {
	databases(t, func(t *testing.T, again func() *bun.DB) {
		db := again()
		_, err := db.ExecContext(t.Context(), "CREATE TABLE waybill_migrations (feature text NOT NULL, version integer NOT NULL, applied_at text NOT NULL, PRIMARY KEY (feature, version))")
		if db.Dialect().Name() == dialect.PG && err == nil {
			_, err = db.ExecContext(t.Context(), "ALTER TABLE waybill_migrations ALTER COLUMN applied_at TYPE timestamptz USING applied_at::timestamptz")
		}
		require.NoError(t, err)
		_, err = db.ExecContext(t.Context(), "INSERT INTO waybill_migrations (feature, version, applied_at) VALUES ('things', 1, '2026-01-01T00:00:00Z'), ('others', 2, '2026-01-01T00:00:00Z')")
		require.NoError(t, err)
		others := set(first)
		others.Feature = "others"
		newer := &migrate.SchemaError{Feature: "others", Have: 2, Need: 1, Oldest: 2}
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		require.Equal(t, newer, others.Check(t.Context(), tx))
		require.NoError(t, set(first).Check(t.Context(), tx), "the transaction is still usable")
		require.NoError(t, tx.Rollback())

		script(t, db, set(first, "-- tolerates: 1\nCREATE TABLE more (id text);"))
		require.NoError(t, set(first).Check(t.Context(), db))
		require.Equal(t, newer, others.Check(t.Context(), db))
	})
}

// script migrates as people do who are given the SQL.
func script(t *testing.T, db *bun.DB, s migrate.Set) {
	t.Helper()
	steps, err := s.Missing(t.Context(), db)
	require.NoError(t, err)
	text, err := migrate.Plan{Steps: steps}.Script(t.Context(), db)
	require.NoError(t, err)
	_, err = db.DB.ExecContext(t.Context(), text)
	require.NoError(t, err, text)
}

func TestFiles_O15_WhatTheyTolerate(t *testing.T) {
	for _, wrong := range []string{"-- tolerates: 3\n", "-- tolerates: 0\n", "-- tolerates: all", "--tolerates:"} {
		_, err := set(first, wrong).Steps(pgdialect.New())
		require.ErrorContains(t, err, "postgres/0002_step.sql: ", wrong)
		require.ErrorContains(t, err, "write a number from 1 to 2, or leave it out")
	}
	steps, err := set(first, "\nSELECT 1;\n-- tolerates: 1\n").Steps(pgdialect.New())
	require.NoError(t, err)
	require.Equal(t, 2, steps[1].Tolerates, "only a file's head says it")
}

// F-59: a file that fails is an error with its name and the database's words, and
// leaves nothing.
func TestUpIsAllOrNothing(t *testing.T) {
	databases(t, func(t *testing.T, again func() *bun.DB) {
		db := again()
		err := set(first, broken).Up(t.Context(), db)
		require.ErrorContains(t, err, "migrate: tables of things: 0002_step.sql: ")
		require.ErrorContains(t, err, "nothing")
		_, err = db.ExecContext(t.Context(), "SELECT * FROM others")
		require.Error(t, err, "the first statement of the file was rolled back with the second")
		require.Equal(t, &migrate.SchemaError{Feature: "things", Need: 2}, set(first, broken).Check(t.Context(), db))
		require.NoError(t, set(first).Up(t.Context(), db), "the first file was rolled back with the second")
	})
}

// A table that a restore brought without waybill_migrations, or that is somebody else's.
func TestUp_WhatIsThereAlready(t *testing.T) {
	databases(t, func(t *testing.T, again func() *bun.DB) {
		db := again()
		_, err := db.ExecContext(t.Context(), "CREATE TABLE things (id text)")
		require.NoError(t, err)
		err = set(first).Up(t.Context(), db)
		require.ErrorContains(t, err, "migrate: tables of things: 0001_step.sql: something of that name is there, and waybill_migrations doesn't say that a migration made it: ")
		require.ErrorContains(t, err, migrate.ToRestoreBooks)
		require.ErrorContains(t, err, "already exists")
	})
}

// F-59: a process that ends in the middle leaves nothing, and no lock: the next
// one applies everything.
func TestUpEndedInTheMiddle(t *testing.T) {
	databases(t, func(t *testing.T, again func() *bun.DB) {
		endless := set(first, "")
		endless.Files.(fstest.MapFS)["postgres/0002_step.sql"].Data = []byte("CREATE TABLE others (id text); SELECT pg_sleep(3600);")
		endless.Files.(fstest.MapFS)["sqlite/0002_step.sql"].Data = []byte("CREATE TABLE others (id text); CREATE TABLE numbers AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT 1 FROM n) SELECT 1 FROM n WHERE i > 1;")
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		require.Error(t, endless.Up(ctx, again()))
		require.Error(t, ctx.Err())
		db := again()
		require.NoError(t, set(first, second).Up(t.Context(), db))
		_, err := db.ExecContext(t.Context(), "SELECT * FROM others")
		require.Error(t, err)
	})
}

// F-59: while one process migrates, another waits, and then finds it done.
func TestUpOneProcessAtATime(t *testing.T) {
	databases(t, func(t *testing.T, again func() *bun.DB) {
		var wg sync.WaitGroup
		errs := make(chan error, 8)
		for range cap(errs) {
			db := again()
			wg.Go(func() { errs <- set(first, second).Up(context.Background(), db) })
		}
		wg.Wait()
		for range cap(errs) {
			require.NoError(t, <-errs)
		}
	})
}

// Another process may take longer than a role's timeouts allow, which bound the steps: of
// several instances that start at once none fails because one migrates.
func TestUp_WaitsItsTurnPastTheTimeoutsOfTheRole(t *testing.T) {
	p, _ := dbtest.Postgres(t, func(c *postgres.Config) { c.DSN += "?lock_timeout=50&statement_timeout=60000" })
	other, _ := dbtest.Postgres(t)
	tx, err := other.DB().BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	var pid int
	require.NoError(t, tx.NewRaw("SELECT pg_backend_pid() FROM pg_advisory_xact_lock(?)", int64(0x77617962696c6c)).Scan(t.Context(), &pid))
	done := make(chan error, 1)
	go func() {
		done <- set("CREATE TABLE timeouts AS SELECT current_setting('lock_timeout') || ' ' || current_setting('statement_timeout') AS text").Up(t.Context(), p.DB())
	}()
	waittest.Until(t, func() bool {
		var long bool
		require.NoError(t, other.DB().NewRaw("SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE ? = ANY (pg_blocking_pids(pid)) AND clock_timestamp() - query_start > interval '200ms')", pid).Scan(t.Context(), &long))
		return long || len(done) > 0
	})
	require.NoError(t, tx.Rollback())
	require.NoError(t, <-done)
	var text string
	require.NoError(t, p.DB().NewRaw("SELECT text FROM timeouts").Scan(t.Context(), &text))
	require.Equal(t, "50ms 1min", text)
}

func TestCheckLeavesATransactionUsable(t *testing.T) {
	databases(t, func(t *testing.T, again func() *bun.DB) {
		tx, err := again().BeginTx(t.Context(), nil)
		require.NoError(t, err)
		require.Error(t, set(first).Check(t.Context(), tx))
		_, err = tx.ExecContext(t.Context(), "SELECT 1")
		require.NoError(t, err)
		require.NoError(t, tx.Commit())
	})
}

func TestFilesAreNumberedWithoutGaps(t *testing.T) {
	databases(t, func(t *testing.T, again func() *bun.DB) {
		db := again()
		for _, names := range [][]string{{"0002_b.sql"}, {"0001_a.sql", "0003_c.sql"}, {"0001_a.sql", "0001_b.sql"}, {"1_a.sql"}, {"0001_a.txt"}, {"readme"}} {
			fsys := fstest.MapFS{}
			for _, n := range names {
				fsys["postgres/"+n] = &fstest.MapFile{}
				fsys["sqlite/"+n] = &fstest.MapFile{}
			}
			require.Error(t, migrate.Set{Feature: "things", Files: fsys}.Check(t.Context(), db), "%v", names)
		}
	})
}
