package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/process"
	"github.com/waybill-go/waybill/uow"
)

const lending = "library.lending"

// beginProcess stores a process that runs since some time.
func beginProcess(t *testing.T, p uow.Provider, id string, ago time.Duration) {
	t.Helper()
	at := dbtime.Value(p.DB().Dialect(), time.Now().Add(-ago))
	_, err := p.DB().ExecContext(t.Context(), "INSERT INTO processes (process, id, version, status, state, began_at, last_at, heard) VALUES (?, ?, 1, 'running', ?, ?, ?, ?)",
		lending, id, `{"Steps":[7]}`, at, at, `[{"at":"2026-01-02T03:04:05Z","type":"Library.LoanPlaced.v1","id":"m-1"}]`)
	require.NoError(t, err)
}

func TestProcesses_ListShowEndAndWake(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string, p uow.Provider) {
		file := configured(t, "default: "+provider)
		run := func(args ...string) result {
			return waybill(t, append([]string{"--config", file, "processes"}, args...)...)
		}
		require.Equal(t, result{0, "No processes match.\n", ""}, run("list"))
		require.Equal(t, result{0, "There are no processes.\n", ""}, run("stats"))
		beginProcess(t, p, "l 1", time.Hour)
		beginProcess(t, p, "l2", 40*24*time.Hour)
		timer := setTimer(t, p, process.Owner(lending, "l 1"), "due", time.Now().Add(time.Hour))
		r := run("list")
		require.Zero(t, r.code, r.stderr)
		require.Regexp(t, `(?s)PROCESS +ID +STATUS +HEARD +BEGAN +LAST HEARD +ENDED.*library.lending +l2 +running .*library.lending +l 1 `, r.stdout)
		r = run("list", "--limit", "1")
		require.NotContains(t, r.stdout, "l 1")
		require.Regexp(t, `continue with --after \S+,library.lending,l2\n`, r.stderr)
		require.NotContains(t, run("list", "--idle").stdout, "l 1")
		require.Regexp(t, `library.lending +2 +0 +0 +1 +960h0m`, run("stats").stdout)
		require.Equal(t, exitUsage, run("list", "--limit", "0").code)

		r = run("show", lending, "l 1")
		require.Zero(t, r.code, r.stderr)
		for _, part := range []string{"library.lending l 1, provider default", "Library.LoanPlaced.v1  m-1", "due, waiting, due ", `"Steps"`, "waybill processes end --process library.lending --id 'l 1'", "waybill processes wake library.lending 'l 1'"} {
			require.Contains(t, r.stdout, part)
		}
		require.Contains(t, run("show", "--json", lending, "l2").stdout, `"status": "running"`)
		r = run("show", lending, "l3")
		require.Equal(t, exitFailed, r.code)
		require.Contains(t, r.stderr, "there is no process")

		require.Contains(t, run("wake", lending, "l2", "--yes").stderr, "nothing but a message can wake it")
		require.Contains(t, run("wake", lending, "l 1", "--timer", "x", "--yes").stderr, `has no timer "x" that waits`)
		require.Equal(t, result{0, "have timer due of library.lending l 1 ring now\n", ""}, run("wake", lending, "l 1", "--dry-run"))
		require.Contains(t, waybill(t, "--config", file, "timers", "show", timer).stdout, "waiting, due ")
		r = run("wake", lending, "l 1", "--actor", "ada", "--yes")
		require.Regexp(t, `Timer due is due now; action \d+, by ada`, r.stdout)
		require.Contains(t, waybill(t, "--config", file, "timers", "show", timer).stdout, "an engine of its database sends it")

		for _, args := range [][]string{{"end"}, {"end", "--provider", "default"}, {"end", "--process", lending}, {"end", "--process", lending, "--retention", "0s", "--yes"}} {
			require.Equal(t, exitUsage, run(args...).code, args)
		}
		require.Equal(t, result{0, "end 1 process, with their timers\n", ""}, run("end", "--id", "l 1", "--dry-run"))
		r = run("end", "--id", "l 1", "--actor", "ada", "--yes")
		require.Regexp(t, `1 process ended; action \d+, by ada`, r.stdout)
		require.Contains(t, run("show", lending, "l 1").stdout, "what comes for it is ignored")
		require.NotZero(t, waybill(t, "--config", file, "timers", "show", timer).code, "it is stopped")
		require.Equal(t, result{0, "end 0 processes, with their timers\nleft: 1 process that don't run\n", ""}, run("end", "--id", "l 1", "--yes"))
		require.Contains(t, run("end", "--id", "l9", "--yes").stderr, "there is no such process")
		require.Contains(t, run("end", "--process", lending, "--yes", "--json").stdout, `"changed": 1`)
		require.Regexp(t, `(?s)processes-end +1 .*processes-end +1 .*ada +timers-move +1 `, waybill(t, "--config", file, "outbox", "log").stdout)
		require.Equal(t, "'it'\\''s'", quote("it's"))
	})
}
