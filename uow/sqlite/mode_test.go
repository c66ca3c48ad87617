//go:build unix

package sqlite_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/sqlite"
)

// modes are those of the files of a database that is open.
func modes(t *testing.T, path string) (all []os.FileMode) {
	t.Helper()
	for _, suffix := range []string{"", "-wal", "-shm"} {
		info, err := os.Stat(path + suffix)
		require.NoError(t, err)
		all = append(all, info.Mode().Perm())
	}
	return all
}

func fill(t *testing.T, p uow.Provider) {
	t.Helper()
	_, err := p.DB().ExecContext(t.Context(), "CREATE TABLE things (id text PRIMARY KEY)")
	require.NoError(t, err)
}

// S10: only their owner can read a database's files, whatever the umask lets
// through, those that SQLite makes beside it included.
func TestOpen_S10_FilesArePrivate(t *testing.T) {
	for _, mask := range []int{0o000, 0o022, 0o002} {
		before := syscall.Umask(mask)
		t.Cleanup(func() { syscall.Umask(before) })
		path := filepath.Join(t.TempDir(), "a.db")
		fill(t, open(t, path))
		require.Equal(t, []os.FileMode{0o600, 0o600, 0o600}, modes(t, path), "umask %03o", mask)
	}
}

// S10: a file that others may read stays as it is: somebody may have wanted that.
// The log says so, once, with what helps.
func TestOpen_S10_AWiderModeIsToldAndLeft(t *testing.T) {
	path := filepath.Join(t.TempDir(), "it's.db")
	fill(t, open(t, path))
	require.NoError(t, os.Chmod(path, 0o640))
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	p, err := sqlite.Open(t.Context(), sqlite.Config{Path: path, Logger: log})
	require.NoError(t, err)
	require.NoError(t, p.Close())
	require.Equal(t, 1, bytes.Count(text.Bytes(), []byte("level=WARN")), text.String())
	require.Contains(t, text.String(), path+" (0640)")
	require.Contains(t, text.String(), "chmod 600")
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), info.Mode().Perm())

	require.NoError(t, os.Chmod(path, 0o600))
	text.Reset()
	p, err = sqlite.Open(t.Context(), sqlite.Config{Path: path, Logger: log})
	require.NoError(t, err)
	require.NoError(t, p.Close())
	require.Empty(t, text.String())
}

// S10: several that make one file at the same time take nothing from each other: a
// file that is closed loses the locks that SQLite has on it in the whole process.
func TestOpen_S10_SeveralMakeOneFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	var all sync.WaitGroup
	providers := make([]uow.Provider, 8)
	errs := make([]error, len(providers))
	for i := range providers {
		all.Go(func() { providers[i], errs[i] = sqlite.Open(t.Context(), sqlite.Config{Path: path}) })
	}
	all.Wait()
	for i, p := range providers {
		require.NoError(t, errs[i])
		t.Cleanup(func() { require.NoError(t, p.Close()) })
	}
	fill(t, providers[0])
	for _, p := range providers {
		_, err := p.DB().ExecContext(t.Context(), "INSERT INTO things SELECT COALESCE(max(id), 0) + 1 FROM things")
		require.NoError(t, err)
	}
	require.Equal(t, []os.FileMode{0o600, 0o600, 0o600}, modes(t, path))
}
