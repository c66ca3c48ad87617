package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// At a terminal the question comes before the deed, and only a yes is one.
func TestDeadLetters_AsksAtATerminal(t *testing.T) {
	dsn := filepath.Join(t.TempDir(), "a.db")
	require.Zero(t, waybill(t, "--dsn", dsn, "migrate").code)
	p := openFor(t, dsn)
	letter(t, p, "shipping", "o-1", "parked", nil)
	for _, c := range []struct {
		answer string
		code   int
		status string
	}{{"\n", exitFailed, "parked"}, {"no\n", exitFailed, "parked"}, {"y\n", 0, "discarded"}} {
		keyboard, terminal := pseudoTerminal(t)
		_, err := keyboard.WriteString(c.answer)
		require.NoError(t, err)
		cmd := exec.CommandContext(t.Context(), binary, "--dsn", dsn, "dead-letters", "discard", "--subscription", "shipping", "--actor", "ada")
		var stdout, stderr bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, &stdout, &stderr
		_ = cmd.Run()
		require.Equal(t, c.code, cmd.ProcessState.ExitCode())
		require.Contains(t, stdout.String(), "discard  1  of subscription shipping\n")
		require.Contains(t, stderr.String(), "Discard 1 message? [y/N] ")
		var status string
		require.NoError(t, p.DB().NewRaw("SELECT status FROM dead_letters").Scan(t.Context(), &status))
		require.Equal(t, c.status, status)
	}
}

func pseudoTerminal(t *testing.T) (keyboard, terminal *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, keyboard.Close()) })
	require.NoError(t, unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, terminal.Close()) })
	return keyboard, terminal
}
