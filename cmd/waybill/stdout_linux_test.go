package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// into runs the built program with a standard output of its own.
func into(t *testing.T, stdout *os.File, args ...string) (code int, stderr string) {
	t.Helper()
	var said strings.Builder
	cmd := exec.CommandContext(t.Context(), binary, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = t.TempDir(), stdout, &said
	_ = cmd.Run()
	return cmd.ProcessState.ExitCode(), said.String()
}

// What can't be written, as on a full disk, isn't written down as if all were fine: half a script
// of migrate, above all.
func TestStdout_WhatCannotBeWrittenIsAFailure(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, full.Close()) })
	dsn := filepath.Join(t.TempDir(), "a.db")
	require.Zero(t, waybill(t, "--dsn", dsn, "migrate").code)
	b, _ := bench(t, openFor(t, dsn))
	for _, args := range []string{"migrate --print", "outbox show 2", "outbox list", "outbox stats --json", "database show", "completion bash"} {
		code, stderr := into(t, full, append([]string{"--dsn", dsn}, strings.Fields(args)...)...)
		require.Equal(t, exitFailed, code, args)
		require.Equal(t, 1, strings.Count(stderr, "no space left on device"), "%s: %s", args, stderr)
	}
	for _, args := range []string{"outbox purge --older-than 1ms", "outbox abandon --status failed", "database accept"} {
		code, stderr := into(t, full, append([]string{"--dsn", dsn}, strings.Fields(args+" --yes")...)...)
		require.Equal(t, exitFailed, code, args)
		require.Equal(t, "waybill: what would be changed can't be written to standard output, so nothing was changed: write /dev/stdout: no space left on device\n", stderr, args)
	}
	require.Len(t, b.Entries(), 7)
	code, stderr := into(t, full, "--dsn", dsn, "--json", "outbox", "abandon", "--status", "failed", "--yes")
	require.Equal(t, exitFailed, code)
	require.Equal(t, "waybill: what was done can't be written to standard output; `waybill outbox log` has it, or `waybill dead-letters log` what concerns those: write /dev/stdout: no space left on device\n", stderr)
	require.Contains(t, waybill(t, "--dsn", dsn, "outbox", "log").stdout, "abandon")
}

// Who stops reading after the first lines, as head does, doesn't end a command between two
// databases.
func TestStdout_WhoStopsReadingEndsNothing(t *testing.T) {
	dir := t.TempDir()
	one, two := filepath.Join(dir, "one.db"), filepath.Join(dir, "two.db")
	file := configured(t, fmt.Sprintf("one: {dialect: sqlite, path: %q}, two: {dialect: sqlite, path: %q}", one, two))
	for _, dsn := range []string{one, two} {
		place(t, openFor(t, dsn), 1)
	}
	reads, writes, err := os.Pipe()
	require.NoError(t, err)
	read := make(chan string, 1)
	go func() {
		text, some := "", make([]byte, 100)
		for strings.Count(text, "rows\n") < 2 {
			n, err := reads.Read(some)
			if text += string(some[:n]); err != nil {
				break
			}
		}
		_ = reads.Close()
		read <- text
	}()
	keyboard, terminal := pseudoTerminal(t)
	var stderr strings.Builder
	cmd := exec.CommandContext(t.Context(), binary, "--config", file, "outbox", "abandon", "--target", "default", "--actor", "ada")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, writes, &stderr
	require.NoError(t, cmd.Start())
	require.NoError(t, writes.Close())
	require.Contains(t, <-read, "Provider two")
	_, err = keyboard.WriteString("y\n")
	require.NoError(t, err)
	_ = cmd.Wait()
	require.Equal(t, exitFailed, cmd.ProcessState.ExitCode(), stderr.String())
	require.Contains(t, stderr.String(), "Abandon 2 rows? [y/N] ")
	require.Contains(t, stderr.String(), "waybill: what was done can't be written to standard output; `waybill outbox log` has it")
	r := waybill(t, "--config", file, "outbox", "log")
	require.Regexp(t, `(?m)^one .* ada  abandon  1 `, r.stdout)
	require.Regexp(t, `(?m)^two .* ada  abandon  1 `, r.stdout)
}
