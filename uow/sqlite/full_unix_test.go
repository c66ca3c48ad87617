//go:build unix

package sqlite_test

import (
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/uow/sqlite"
)

// A process that starts while a disk is full says so: SQLite can't make what it keeps beside
// the file, and speaks of an I/O error. The limit that the shell sets for a process of its own
// refuses that in the same way.
func TestOpen_SaysThatNothingCanGrow(t *testing.T) {
	if path := os.Getenv("WAYBILL_FILE_THAT_CAN_NOT_GROW"); path != "" {
		signal.Ignore(syscall.SIGXFSZ) //nolint:forbidigo // It is a program.
		_, err := sqlite.Open(t.Context(), sqlite.Config{Path: path})
		require.ErrorContains(t, err, path+" can't be opened, as its disk is full (it has ")
		require.ErrorContains(t, err, "make room")
		return
	}
	path := filepath.Join(t.TempDir(), "test.db")
	p, err := sqlite.Open(t.Context(), sqlite.Config{Path: path})
	require.NoError(t, err)
	require.NoError(t, p.Close())
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `ulimit -f 0; exec "$0" "$@"`, os.Args[0], "-test.run=^TestOpen_SaysThatNothingCanGrow$") //nolint:gosec // itself
	cmd.Env = append(os.Environ(), "WAYBILL_FILE_THAT_CAN_NOT_GROW="+path)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "PASS")
}
