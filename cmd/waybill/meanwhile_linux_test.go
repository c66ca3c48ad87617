package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/process"
	"github.com/waybill-go/waybill/uow"
)

// What begins, or is set, while somebody is asked whether to end or stop what was shown, was
// not shown, and stays.
func TestAct_WhatComesWhileItAsksStays(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string, p uow.Provider) {
		file := configured(t, "default: "+provider)
		for _, c := range []struct {
			args, question, left string
			come                 func(id string)
		}{
			{"processes end --process " + lending, "End 1 process? ", "SELECT id FROM processes WHERE status = 'running'", func(id string) { beginProcess(t, p, id, 0) }},
			{"timers stop --name due", "Stop 1 timer? ", "SELECT owner FROM timers", func(id string) { setTimer(t, p, id, "due", time.Now().Add(time.Hour)) }},
		} {
			c.come("before")
			keyboard, terminal := pseudoTerminal(t)
			screen, asks := pseudoTerminal(t)
			cmd := exec.CommandContext(t.Context(), binary, strings.Fields("--config "+file+" "+c.args+" --actor ada")...)
			var stdout bytes.Buffer
			cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, &stdout, asks
			require.NoError(t, cmd.Start())
			require.Contains(t, seen(t, screen, len(c.question)), c.question)
			c.come("meanwhile")
			_, err := keyboard.WriteString("y\n")
			require.NoError(t, err)
			require.NoError(t, cmd.Wait())
			require.Contains(t, stdout.String(), "action ")
			var left []string
			require.NoError(t, p.DB().NewRaw(c.left).Scan(t.Context(), &left))
			require.Equal(t, []string{"meanwhile"}, left)
		}
	})
}

// Of two who do the same at once one does it, and the other one is told so.
func TestAct_WhatSomebodyElseHasDoneIsSaid(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string, p uow.Provider) {
		file := configured(t, "default: "+provider)
		setTimer(t, p, "before", "due", time.Now().Add(time.Hour))
		args := strings.Fields("--config " + file + " timers stop --name due --actor ada")
		keyboard, terminal := pseudoTerminal(t)
		screen, asks := pseudoTerminal(t)
		cmd := exec.CommandContext(t.Context(), binary, args...)
		var stdout bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, &stdout, asks
		require.NoError(t, cmd.Start())
		const question = "Stop 1 timer? "
		require.Equal(t, question, seen(t, screen, len(question)))
		require.Zero(t, waybill(t, append(args, "--yes")...).code)
		_, err := keyboard.WriteString("y\n")
		require.NoError(t, err)
		require.NoError(t, cmd.Wait())
		require.Equal(t, "stop  1  timers\nNothing was changed: what was shown isn't as it was any more, as somebody else has changed it meanwhile.\n", stdout.String())
	})
}

// Of two who wake a process at once, the second one doesn't have the timer ring that the process
// has set under the same name when the first one's rang, and is told so.
func TestProcesses_WakeHasOnlyTheTimerRingThatWasShown(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string, p uow.Provider) {
		file := configured(t, "default: "+provider)
		owner, nextMonth := process.Owner(lending, "l1"), time.Now().Add(30*24*time.Hour)
		setTimer(t, p, owner, "due", time.Now().Add(time.Hour))
		beginProcess(t, p, "l1", time.Hour)
		keyboard, terminal := pseudoTerminal(t)
		screen, asks := pseudoTerminal(t)
		cmd := exec.CommandContext(t.Context(), binary, "--config", file, "processes", "wake", lending, "l1", "--actor", "ada")
		var stdout bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, &stdout, asks
		require.NoError(t, cmd.Start())
		const question = "Wake it? "
		require.Equal(t, question, seen(t, screen, len(question)))
		again := setTimer(t, p, owner, "due", nextMonth) // in place of the one that rang
		_, err := keyboard.WriteString("y\n")
		require.NoError(t, err)
		require.NoError(t, cmd.Wait())
		require.Equal(t, "have timer due of library.lending l1 ring now\nNothing was changed: what was shown isn't as it was any more, as somebody else has changed it meanwhile.\n", stdout.String())
		var id string
		var at dbtime.Time
		require.NoError(t, p.Reader().NewRaw("SELECT id, available_at FROM timers").Scan(t.Context(), &id, &at))
		require.Equal(t, again, id)
		require.WithinDuration(t, nextMonth, at.Time, time.Second)
	})
}

// Who is interrupted while it waits is told so.
func TestAct_AnInterruptedOneSaysSo(t *testing.T) {
	dsn := server(t)
	require.Zero(t, waybill(t, "--dsn", dsn, "migrate").code)
	p := openFor(t, dsn)
	_, err := p.DB().ExecContext(t.Context(), `INSERT INTO outbox_settings (name, value) VALUES ('identity', '{"system": "1"}')`)
	require.NoError(t, err)
	other, err := p.DB().BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, other.Rollback()) }()
	var session int
	require.NoError(t, other.NewRaw("SELECT pg_backend_pid() FROM outbox_settings WHERE name = 'identity' FOR UPDATE").Scan(t.Context(), &session))
	cmd := exec.CommandContext(t.Context(), binary, "--dsn", dsn, "database", "accept", "--yes", "--actor", "ada")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	require.NoError(t, cmd.Start())
	waittest.Until(t, func() (waits bool) {
		require.NoError(t, p.DB().NewRaw("SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted AND ? = ANY (pg_blocking_pids(pid)))", session).Scan(t.Context(), &waits))
		return waits
	})
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	_ = cmd.Wait()
	require.Equal(t, exitFailed, cmd.ProcessState.ExitCode())
	require.Equal(t, "waybill: provider \"default\": outbox: accept the database: it ended early, with 0 databases accepted; run it again: interrupt signal received\n", stderr.String())
}

// What it couldn't come to any more isn't told as if it had been done as planned.
func TestAct_JSONHasOnlyWhatWasDone(t *testing.T) {
	defer signal.Reset(syscall.SIGPIPE)
	var stdout, stderr bytes.Buffer
	actor, refused := "ada", errors.New("refused")
	err := act[int]{deed: deed{Yes: true, onRecord: onRecord{&actor}}, do: func(dryRun bool, all map[string]int) error {
		if dryRun {
			all["one"], all["two"] = 7, 7
			return nil
		}
		all["one"] = 5
		return refused
	}, tell: func(map[string]int) (string, error) { return "Do it?", nil }}.run(t.Context(), &cli{JSON: true}, out{&outlet{Writer: &stdout}}, news{&stderr})
	require.ErrorIs(t, err, refused)
	require.JSONEq(t, `{"dry_run": false, "providers": {"one": 5}}`, stdout.String())
}

// What becomes another database while somebody is asked about it isn't accepted unseen.
func TestAct_AnotherDatabaseIsNotAcceptedUnseen(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string, p uow.Provider) {
		file := configured(t, "default: "+provider)
		setTimer(t, p, "before", "due", time.Now().Add(time.Hour)) // makes the tables
		become := func(identity string) {
			_, err := p.DB().ExecContext(t.Context(), "INSERT INTO outbox_settings (name, value) VALUES ('identity', ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value", identity)
			require.NoError(t, err)
		}
		become(`{"system": "1", "file": "1"}`)
		keyboard, terminal := pseudoTerminal(t)
		screen, asks := pseudoTerminal(t)
		cmd := exec.CommandContext(t.Context(), binary, strings.Fields("--config "+file+" database accept --actor ada")...)
		var stdout bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, &stdout, asks
		require.NoError(t, cmd.Start())
		const question = "Publish from this database? "
		require.Equal(t, question, seen(t, screen, len(question)))
		const another = `{"system": "2", "file": "2"}`
		become(another)
		_, err := keyboard.WriteString("y\n")
		require.NoError(t, err)
		require.NoError(t, cmd.Wait())
		require.Contains(t, stdout.String(), "Nothing was changed: what was shown isn't as it was any more")
		var recorded string
		require.NoError(t, p.DB().NewRaw("SELECT value FROM outbox_settings WHERE name = 'identity'").Scan(t.Context(), &recorded))
		require.JSONEq(t, another, recorded)
		var actions int
		require.NoError(t, p.DB().NewRaw("SELECT count(*) FROM outbox_actions").Scan(t.Context(), &actions))
		require.Zero(t, actions)
	})
}
