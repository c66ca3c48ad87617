package sqlite_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/sqlite"
)

// table is one of a database, through the provider that has it open.
type table struct{ uow.Provider }

func newTable(t *testing.T, p uow.Provider) *table {
	t.Helper()
	_, err := p.DB().ExecContext(t.Context(), "CREATE TABLE things (id int)")
	require.NoError(t, err)
	return &table{p}
}

func (p *table) insert(ctx context.Context) error {
	_, err := p.DB().ExecContext(ctx, "INSERT INTO things VALUES (1)")
	return err
}

func (p *table) count(ctx context.Context) (n int, err error) {
	err = p.Reader().NewRaw("SELECT count(*) FROM things").Scan(ctx, &n)
	return n, err
}

// A backup that is put in the file's place while a process has it open isn't mixed with what
// that has open, and nothing is written where nobody will find it.
func TestOpen_AFileThatWasReplacedIsUsedNoMore(t *testing.T) {
	for name, replace := range map[string]func(path string) error{
		"by a backup": func(path string) error { return os.Rename(path+".backup", path) },
		"by nothing":  os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "test.db")
			p := newTable(t, open(t, path))
			_, err := p.DB().ExecContext(t.Context(), "VACUUM INTO '"+path+".backup'")
			require.NoError(t, err)
			require.NoError(t, p.insert(t.Context()))
			n, err := p.count(t.Context())
			require.NoError(t, err)
			require.Equal(t, 1, n)

			require.NoError(t, replace(path))
			const refused = "was replaced, moved or removed while this process has it open"
			require.ErrorContains(t, p.insert(t.Context()), refused)
			_, err = p.count(t.Context())
			require.ErrorContains(t, err, refused)

			require.NoError(t, p.Close())
			for _, beside := range []string{"-wal", "-shm"} {
				require.NoError(t, os.RemoveAll(path+beside))
			}
			if name == "by nothing" {
				return
			}
			p.Provider = open(t, path)
			n, err = p.count(t.Context())
			require.NoError(t, err)
			require.Zero(t, n)
			require.NoError(t, p.insert(t.Context()))
		})
	}
}

// Who goes on by a log that has no name any more writes what nobody finds, and past the locks of
// all who come later: the file would be damaged. What was committed is in the file after a clean stop.
func TestOpen_AFileWhoseLogWasRemovedIsUsedNoMore(t *testing.T) {
	for _, gone := range []string{"-wal", "-shm"} {
		t.Run(gone, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "test.db")
			p := newTable(t, open(t, path))
			_, err := p.count(t.Context())
			require.NoError(t, err)
			other := open(t, path) // one that comes and goes removes nothing
			require.NoError(t, other.Close())
			require.NoError(t, p.insert(t.Context()))

			require.NoError(t, os.Remove(path+gone))
			const refused = "was removed while this process has"
			_, err = p.count(t.Context())
			require.ErrorContains(t, err, refused)
			require.ErrorContains(t, p.insert(t.Context()), refused)

			require.NoError(t, p.Close())
			p.Provider = open(t, path)
			n, err := p.count(t.Context())
			require.NoError(t, err)
			require.Equal(t, 1, n)
		})
	}
}

// What is read by the log of another file is damaged, too.
func TestOpen_ADamagedFileSaysWhatElseItMayBe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	p, err := sqlite.Open(t.Context(), sqlite.Config{Path: path})
	require.NoError(t, err)
	_, err = p.DB().ExecContext(t.Context(), "CREATE TABLE things (id int)")
	require.NoError(t, err)
	require.NoError(t, p.Close())
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(bytes.Repeat([]byte{0xff}, 2000), 100)
	require.NoError(t, errors.Join(err, f.Close()))
	_, err = sqlite.Open(t.Context(), sqlite.Config{Path: path})
	require.ErrorContains(t, err, "is damaged: restore it from a backup; if it has just been put there, "+path+"-wal and "+path+"-shm belong to the file before")
}
