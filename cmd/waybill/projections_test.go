package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/uow"
)

func TestProjections_ListRebuildSwitchSkipAndRetire(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string, p uow.Provider) {
		file := configured(t, "default: "+provider)
		run := func(args ...string) result {
			return waybill(t, append([]string{"--config", file, "projections"}, args...)...)
		}
		exec := func(query string, args ...any) {
			_, err := p.DB().ExecContext(t.Context(), query, args...)
			require.NoError(t, err)
		}
		require.Equal(t, result{0, "There are no projections.\n", ""}, run("list"))
		require.Contains(t, run("rebuild", "loans", "--yes").stderr, `there is no projection "loans"`)
		for build, status := range map[int]string{1: "old", 2: "live"} {
			table := map[int]string{1: "loans__1", 2: "loans__2"}[build]
			exec("CREATE TABLE " + table + " (id INTEGER)")
			exec("INSERT INTO projections (projection, build, version, context, status, tables) VALUES ('loans', ?, ?, 'library', ?, ?)", build, build, status, `{"loans":["id"]}`)
			exec("INSERT INTO projection_positions (projection, build, shard, position, events) VALUES ('loans', ?, 0, ?, 40)", build, 40+build)
		}
		exec("CREATE VIEW loans AS SELECT id FROM loans__2")
		exec("UPDATE projection_positions SET tries = 3, error = 'no idea', failed_position = 43, failed_event = 'Library.LoanPlaced.v1 m-1', failed_at = ? WHERE build = 2",
			dbtime.Value(p.DB().Dialect(), time.Now()))
		r := run("list")
		require.Zero(t, r.code, r.stderr)
		require.Regexp(t, `(?s)loans +1 +1 +old +no +41 .*loans +2 +2 +live +no +42 +0 .*loans, build 2, stopped at .*, position 43: Library.LoanPlaced.v1 m-1, tried 3 times: no idea`, r.stdout)
		require.Contains(t, r.stdout, "waybill projections skip loans --build 2 --position 43")
		require.Contains(t, run("list", "loans", "--json").stdout, `"status": "live"`)
		require.Equal(t, result{0, "There is no projection \"other\"; `waybill projections list` has those that there are.\n", ""}, run("list", "other"))
		if p.DB().Dialect().Name() == dialect.PG { // N5: for whom it waits.
			tx, err := p.DB().BeginTx(t.Context(), nil)
			require.NoError(t, err)
			var pid int
			var me string
			_, err = tx.ExecContext(t.Context(), "LOCK TABLE history IN ROW EXCLUSIVE MODE")
			require.NoError(t, err)
			require.NoError(t, tx.QueryRowContext(t.Context(), "SELECT pid, virtualtransaction FROM pg_locks WHERE pid = pg_backend_pid() LIMIT 1").Scan(&pid, &me))
			exec("UPDATE projection_positions SET held_by = ?, held_since = '2026-01-02T03:04:05Z', locked_until = clock_timestamp() + interval '50 s' WHERE build = 1", me)
			r = run("list")
			require.Contains(t, r.stdout, fmt.Sprintf("loans, build 1, waits since 2026-01-02T03:04:05Z for pid %d, application ", pid))
			require.Contains(t, r.stdout, fmt.Sprintf("SELECT pg_terminate_backend(%d)   ends it", pid))
			require.Contains(t, run("list", "--json").stdout, fmt.Sprintf(`"pid": %d`, pid))
			require.NoError(t, tx.Rollback())
			exec("UPDATE projection_positions SET locked_until = '-infinity'")
		}

		require.Contains(t, run("skip", "loans", "--build", "2", "--position", "44", "--yes").stderr, "hasn't stopped at position 44")
		require.Contains(t, run("skip", "loans", "--build", "2", "--position", "43", "--dry-run").stdout, "continue without Library.LoanPlaced.v1 m-1: no idea")
		require.Contains(t, run("skip", "loans", "--build", "2", "--position", "43", "--yes", "--actor", "ada").stdout, "Build 2 of loans continues after position 43. By ada.")
		require.Contains(t, run("switch", "loans", "--to", "1", "--yes").stderr, "take it as it is with --stale")
		require.Contains(t, run("switch", "loans", "--to", "9", "--yes").stderr, "no build 9")
		require.Contains(t, run("switch", "loans", "--to", "1", "--stale", "--yes").stdout, "Build 1 of loans is in use.")
		require.Contains(t, run("retire", "loans", "--build", "1", "--yes").stderr, "is in use: switch to another one first")
		require.Contains(t, run("retire", "loans", "--build", "2", "--yes", "--json").stdout, `"done": true`)
		require.Contains(t, run("rebuild", "loans", "--dry-run").stdout, "No process feeds version 1 of it at the moment, so it waits until one that has this version runs.")
		require.Contains(t, run("rebuild", "loans", "--yes").stdout, "Build 2 of loans was requested")
		require.Contains(t, run("rebuild", "loans", "--yes").stderr, "is on its way")
		require.Contains(t, run("retire", "loans", "--yes").stdout, "loans is removed.")
		require.Equal(t, result{0, "There are no projections.\n", ""}, run("list"))
		require.Regexp(t, `(?s)projections-retire +1 .*projections-rebuild +1 .*projections-retire +1 .*projections-switch +1 .*ada +projections-skip +1 `, waybill(t, "--config", file, "outbox", "log").stdout)
	})
}
