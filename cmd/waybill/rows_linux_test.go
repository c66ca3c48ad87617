package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/liveness/livenesstest"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

// N1: of a row that waits it is said who holds its partition, until when, and whether
// that process is alive.
func TestOutbox_N1_ShowsWhomARowWaitsFor(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string, p uow.Provider) {
		run := command(t, configured(t, "default: "+provider))
		b, _ := bench(t, p)
		for name, c := range map[string]struct{ state, words string }{
			"elsewhere-4711-00c0ffee-1": {"unknown", "\n"},
			livenesstest.Alive():        {"alive", "; its process is alive on this host\n"},
			livenesstest.Dead(t):        {"dead", "; its process on this host is dead: an engine on this host takes it over at once, on another host when the lease has run out\n"},
		} {
			b.Exec("UPDATE outbox_members SET name = ?", name)
			require.Regexp(t, `  Partition     \d+, held by `+regexp.QuoteMeta(name)+` until 20\S+Z \(\S+\)`+c.words, run(0, "outbox", "show", "2").stdout)
			require.Equal(t, c.state == "dead", strings.Contains(run(0, "partitions").stdout, "Z: its process is dead "))
			var shown struct {
				Rows []struct {
					Owner      string `json:"owner"`
					OwnerState string `json:"owner_state"`
				} `json:"rows"`
			}
			require.NoError(t, json.Unmarshal([]byte(run(0, "outbox", "show", "2", "--json").stdout), &shown))
			require.Equal(t, []string{name, c.state}, []string{shown.Rows[0].Owner, shown.Rows[0].OwnerState})
		}
	})
}

// At a terminal the question says what is out of order, and only a yes is one;
// how far it has come is told on one line.
func TestOutbox_AsksAtATerminal(t *testing.T) {
	dsn := filepath.Join(t.TempDir(), "a.db")
	require.Zero(t, waybill(t, "--dsn", dsn, "migrate").code)
	b, _ := bench(t, openFor(t, dsn))
	for _, c := range []struct {
		args, question string
		code           int
		status         outbox.Status
	}{
		{"retry --seq 3", "Retry 1 row, 1 of them out of order? [y/N] ", exitFailed, outbox.Abandoned},
		{"purge --older-than 1ms", "Remove 1 published and 1 abandoned rows for good? [y/N] ", exitFailed, outbox.Abandoned},
		{"retry --seq 3", "Retry 1 row, 1 of them out of order? [y/N] ", 0, outbox.Pending},
	} {
		keyboard, terminal := pseudoTerminal(t)
		answer := "n\n"
		if c.code == 0 {
			answer = "y\n"
		}
		_, err := keyboard.WriteString(answer)
		require.NoError(t, err)
		cmd := exec.CommandContext(t.Context(), binary, strings.Fields("--dsn "+dsn+" outbox "+c.args+" --actor ada")...)
		var stdout, stderr bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, &stdout, &stderr
		_ = cmd.Run()
		require.Equal(t, c.code, cmd.ProcessState.ExitCode(), stderr.String())
		require.Contains(t, stderr.String(), c.question)
		require.NotContains(t, stderr.String(), "\x1b", "no progress without a terminal")
		require.Equal(t, c.status, b.Statuses()[2])
	}
}

func TestOutbox_TellsProgressAtATerminal(t *testing.T) {
	dsn := filepath.Join(t.TempDir(), "a.db")
	require.Zero(t, waybill(t, "--dsn", dsn, "migrate").code)
	b, _ := bench(t, openFor(t, dsn))
	for part := range 5 {
		b.Insert(outboxdbtest.Numbered(fmt.Sprint(part), 500)...)
	}
	screen, terminal := pseudoTerminal(t)
	cmd := exec.CommandContext(t.Context(), binary, "--dsn", dsn, "outbox", "abandon", "--status", "pending", "--yes", "--actor", "ada")
	var stdout bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, terminal
	require.NoError(t, cmd.Run())
	require.Equal(t, "\r\x1b[Kdefault: 1000 of 2502 rows", seen(t, screen, 30))
	require.Contains(t, stdout.String(), "2502 rows abandoned; action 1, by ada.\n")
}

// Stats that go on are always at the top of a terminal.
func TestStats_WatchClearsATerminal(t *testing.T) {
	dsn := filepath.Join(t.TempDir(), "a.db")
	require.Zero(t, waybill(t, "--dsn", dsn, "migrate").code)
	screen, terminal := pseudoTerminal(t)
	cmd := exec.CommandContext(t.Context(), binary, "--dsn", dsn, "outbox", "stats", "-w", "--every", "100ms")
	cmd.Stdout = terminal
	require.NoError(t, cmd.Start())
	require.Equal(t, "\x1b[H\x1b[2J20", seen(t, screen, 9))
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.NoError(t, cmd.Wait())
}

// seen are the first bytes on a screen.
func seen(t *testing.T, screen *os.File, n int) string {
	t.Helper()
	text := make([]byte, n)
	read := make(chan error, 1)
	go func() {
		for at := 0; at < n; {
			some, err := screen.Read(text[at:])
			if err != nil {
				read <- err
				return
			}
			at += some
		}
		read <- nil
	}()
	select {
	case err := <-read:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		require.Fail(t, "nothing is on the screen")
	}
	return string(text)
}
