package operate_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	"go.uber.org/goleak"
	_ "modernc.org/sqlite"

	"github.com/waybill-go/waybill/internal/operate"
	"github.com/waybill-go/waybill/internal/waittest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// databases runs a test on a database of each kind, with a table of things and one
// of actions.
func databases(t *testing.T, test func(t *testing.T, db *bun.DB)) {
	t.Run("postgres", func(t *testing.T) { test(t, postgres(t)) })
	t.Run("sqlite", func(t *testing.T) {
		raw, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "test.db")+"?_txlock=immediate&_pragma=journal_mode(WAL)")
		require.NoError(t, err)
		raw.SetMaxOpenConns(1)
		db := bun.NewDB(raw, sqlitedialect.New())
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		tables(t, db, "integer PRIMARY KEY")
		test(t, db)
	})
}

func postgres(t *testing.T) *bun.DB {
	dsn := os.Getenv("WAYBILL_POSTGRES")
	require.NotEmpty(t, dsn, "run scripts/test, or eval \"$(scripts/services up)\"")
	cfg, err := pgx.ParseConfig(dsn)
	require.NoError(t, err)
	schema := fmt.Sprintf("operate_%d_%d", os.Getpid(), time.Now().UnixNano())
	cfg.RuntimeParams["search_path"] = schema
	db := bun.NewDB(stdlib.OpenDB(*cfg), pgdialect.New())
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	_, err = db.ExecContext(t.Context(), "CREATE SCHEMA ?", bun.Ident(schema))
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := db.ExecContext(context.Background(), "DROP SCHEMA ? CASCADE", bun.Ident(schema))
		require.NoError(t, err)
	})
	tables(t, db, "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY")
	return db
}

func tables(t *testing.T, db *bun.DB, id string) {
	for _, query := range []string{
		"CREATE TABLE things (seq bigint PRIMARY KEY, changed bigint NOT NULL DEFAULT 0)",
		"CREATE TABLE actions (id " + id + ", actor text, action text, filter text, things bigint, of text)",
	} {
		_, err := db.ExecContext(t.Context(), query)
		require.NoError(t, err)
	}
}

func run(db *bun.DB) *operate.Run {
	return &operate.Run{DB: db, What: "things: change", Done: "things changed", Record: operate.Record{
		Table: "actions", Count: "things", Column: "of", Value: "ours", Actor: "ada", Action: "change", Asked: operate.Bounds{Limit: 7},
	}}
}

func keys(n int64) func(context.Context) ([]int64, error) {
	return func(context.Context) (all []int64, err error) {
		for i := range n {
			all = append(all, i)
		}
		return all, nil
	}
}

func insert(ctx context.Context, tx bun.Tx, some []int64) (int64, error) {
	rows := make([]string, len(some))
	for i, seq := range some {
		rows[i] = fmt.Sprintf("(%d)", seq)
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO things (seq) VALUES ?", bun.List(safe(rows)))
	return int64(len(some)), err
}

func safe(texts []string) (all []bun.Safe) {
	for _, text := range texts {
		all = append(all, bun.Safe(text))
	}
	return all
}

func count(t *testing.T, db *bun.DB, query string) (n int64) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), query).Scan(&n))
	return n
}

// failure is what a database says.
type failure string

func (f failure) Error() string    { return "state " + string(f) }
func (f failure) SQLState() string { return string(f) }

func TestDo_ManyAreChangedInBatchesWithOneRecord(t *testing.T) {
	databases(t, func(t *testing.T, db *bun.DB) {
		r := run(db)
		var after []int64
		r.After = func() { after = append(after, r.Changed) }
		require.NoError(t, operate.Do(t.Context(), r, keys(2500), insert))
		require.Equal(t, []int64{1000, 2000, 2500}, after)
		require.EqualValues(t, 2500, count(t, db, "SELECT count(*) FROM things"))
		var actor, action, filter, of string
		var id, n int64
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT id, actor, action, filter, things, of FROM actions").Scan(&id, &actor, &action, &filter, &n, &of))
		require.Equal(t, []any{"ada", "change", `{"limit":7}`, int64(2500), "ours", r.Action}, []any{actor, action, filter, n, of, id})
	})
}

func TestDo_ADryRunEndsWithThePlan(t *testing.T) {
	databases(t, func(t *testing.T, db *bun.DB) {
		r := run(db)
		r.DryRun, r.Record.Actor = true, ""
		require.NoError(t, operate.Do(t.Context(), r, keys(5), insert))
		require.Zero(t, count(t, db, "SELECT (SELECT count(*) FROM things) + (SELECT count(*) FROM actions)"))
	})
}

func TestDo_WhatEndsEarlySaysHowFarItCame(t *testing.T) {
	databases(t, func(t *testing.T, db *bun.DB) {
		r, refused := run(db), errors.New("refused")
		err := operate.Do(t.Context(), r, keys(1500), func(ctx context.Context, tx bun.Tx, some []int64) (int64, error) {
			n, err := insert(ctx, tx, some)
			if n < operate.Batch {
				err = refused
			}
			return n, err
		})
		require.ErrorIs(t, err, refused)
		require.ErrorContains(t, err, "things: change: it ended early, with 1000 things changed; run it again for the others")
		require.EqualValues(t, 1000, r.Changed)
		require.EqualValues(t, 1000, count(t, db, "SELECT count(*) FROM things"))
		require.EqualValues(t, 1000, count(t, db, "SELECT things FROM actions"))
	})
}

// Whether a commit was done whose connection was lost meanwhile is not known, and is not said.
func TestDo_ALostCommitIsSaidToBeOne(t *testing.T) {
	db := postgres(t)
	for _, query := range []string{
		"CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$",
		"CREATE CONSTRAINT TRIGGER lose AFTER INSERT ON things DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.seq = 1000) EXECUTE FUNCTION lose()",
	} {
		_, err := db.ExecContext(t.Context(), query)
		require.NoError(t, err)
	}
	err := operate.Do(t.Context(), run(db), keys(1500), insert)
	require.ErrorContains(t, err, "it ended early, with 1000 things changed, and perhaps 500 more, which the record of the action counts if they are; run it again for the others: ")
}

// A limit counts what is changed by one call: who runs it again asks for less.
func TestDo_WhatEndsEarlySaysWhatIsLeftOfTheLimit(t *testing.T) {
	databases(t, func(t *testing.T, db *bun.DB) {
		r := run(db)
		r.Limit = 1200
		ctx, cancel := context.WithCancel(t.Context())
		r.After = cancel
		require.ErrorContains(t, operate.Do(ctx, r, keys(1200), insert), "with 1000 things changed; run it again for the others, with a limit of 200: ")
	})
}

// Who is interrupted is told so, and by whom, whatever the database makes of it.
func TestDo_AnInterruptedOneSaysSo(t *testing.T) {
	databases(t, func(t *testing.T, db *bun.DB) {
		r := run(db)
		ctx, interrupt := context.WithCancelCause(t.Context())
		r.After = func() { interrupt(errors.New("interrupt signal received")) }
		require.EqualError(t, operate.Do(ctx, r, keys(1500), insert), "things: change: it ended early, with 1000 things changed; run it again for the others: interrupt signal received")
	})
}

func TestDo_NothingChangedIsNotOnRecord(t *testing.T) {
	databases(t, func(t *testing.T, db *bun.DB) {
		r := run(db)
		require.NoError(t, operate.Do(t.Context(), r, keys(1), func(context.Context, bun.Tx, []int64) (int64, error) { return 0, nil }))
		require.Zero(t, r.Action)
		require.Zero(t, count(t, db, "SELECT count(*) FROM actions"))
	})
}

func TestDo_ABatchInTheWayOfAnotherIsTriedAgain(t *testing.T) {
	databases(t, func(t *testing.T, db *bun.DB) {
		r, tries := run(db), 0
		require.NoError(t, operate.Do(t.Context(), r, keys(3), func(ctx context.Context, tx bun.Tx, some []int64) (int64, error) {
			n, err := insert(ctx, tx, some) // again from the beginning
			if tries++; tries == 1 {
				err = failure("40P01")
			}
			return n, err
		}))
		require.Equal(t, 2, tries)
		require.EqualValues(t, 3, r.Changed)
		require.EqualValues(t, 3, count(t, db, "SELECT things FROM actions"))
	})
}

// A command that is stopped in the middle of a batch, as by Ctrl-Z, keeps nobody waiting: its
// transaction ends. When it goes on, it does that batch again.
func TestDo_ABatchThatIsStoppedEndsAndIsTriedAgain(t *testing.T) {
	t.Parallel()
	db := postgres(t)
	require.NoError(t, operate.Do(t.Context(), run(db), keys(1), insert))
	tries := 0
	r := run(db)
	require.NoError(t, operate.Do(t.Context(), r, keys(1), func(ctx context.Context, tx bun.Tx, _ []int64) (int64, error) {
		var session int
		if err := tx.NewRaw("UPDATE things SET changed = changed + 1 WHERE seq = 0 RETURNING pg_backend_pid()").Scan(ctx, &session); err != nil {
			return 0, err
		}
		if tries++; tries == 1 {
			waittest.Until(t, func() bool {
				return count(t, db, fmt.Sprintf("SELECT count(*) FROM pg_stat_activity WHERE pid = %d", session)) == 0
			}, "its session ends")
		}
		return 1, nil
	}))
	require.Equal(t, 2, tries)
	require.EqualValues(t, 1, r.Changed)
	require.EqualValues(t, 1, count(t, db, "SELECT changed FROM things"))
	require.EqualValues(t, 1, count(t, db, fmt.Sprintf("SELECT things FROM actions WHERE id = %d", r.Action)))
}

func TestDo_ALockThatSomebodyKeepsIsNamed(t *testing.T) {
	db := postgres(t)
	require.NoError(t, operate.Do(t.Context(), run(db), keys(1), insert))
	update := func(ctx context.Context, tx bun.Tx, _ []int64) (int64, error) {
		_, err := tx.ExecContext(ctx, "UPDATE things SET changed = changed + 1 WHERE seq = 0")
		return 1, err
	}
	other, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, other.Rollback()) }()
	_, err = update(t.Context(), other, nil)
	require.NoError(t, err)
	r := run(db)
	r.LockWait = time.Millisecond
	require.ErrorContains(t, operate.Do(t.Context(), r, keys(1), update), "another session has locked one of the rows for long, pg_locks says which")
}

// What is on record is shown as one line among others, by terminals and logs.
func TestDo_WhoAsksMustBeAName(t *testing.T) {
	for actor, want := range map[string]string{
		"": "Actor is missing", "a\x00": "give a name of UTF-8 text", "\xff": "give a name of UTF-8 text",
		"a\nb": `Actor is "a\nb": give a name of UTF-8 text, without line breaks`, "a\x1b[31m": "control characters", strings.Repeat("a", 257): "Actor is longer than 256 characters",
	} {
		r := run(nil)
		r.Record.Actor = actor
		require.ErrorContains(t, operate.Do(t.Context(), r, keys(1), insert), want)
	}
}

func TestDo_APlanThatFailsChangesNothing(t *testing.T) {
	refused := errors.New("in the way")
	err := operate.Do(t.Context(), run(nil), func(context.Context) ([]int64, error) { return nil, refused }, insert)
	require.ErrorIs(t, err, refused)
	require.EqualError(t, err, "things: change: in the way")
}

func TestBounds(t *testing.T) {
	require.NoError(t, operate.Bounds{}.Check("x"))
	for _, wrong := range []operate.Bounds{{Rate: -1}, {Rate: math.NaN()}, {Rate: math.Inf(1)}, {Limit: -1}, {UpTo: -1}} {
		require.ErrorContains(t, wrong.Check("things: change"), "things: change: Rate is")
	}
	require.Zero(t, operate.Bounds{}.Delay(5))
	require.Equal(t, 2500*time.Millisecond, operate.Bounds{Rate: 2}.Delay(5))
	require.Equal(t, 1e9*time.Second, operate.Bounds{Rate: 1e-300}.Delay(5), "and not before now")
	require.True(t, operate.Bounds{Limit: 3}.Full(3))
	require.False(t, operate.Bounds{}.Full(3))
}
