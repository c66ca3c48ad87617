package outboxdb_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/dbfile"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow/sqlite"
)

// A backup takes the place of SQLite's file that was removed. On ext4 it gets the number of
// that file, too.
func TestCheckIdentity_ABackupThatGetsTheNumberOfTheFileBefore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shop.db")
	check(t, path, "", require.NoError)
	backup, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.WriteFile(path, backup, dbfile.Private))
	check(t, path, "", func(t require.TestingT, err error, _ ...any) {
		moved := new(outbox.MovedError)
		require.ErrorAs(t, err, &moved)
		require.Contains(t, err.Error(), "made: it was "+moved.Recorded.Made)
	})
}

// What an earlier build recorded lacks when the file was made, and is completed.
func TestCheckIdentity_CompletesWhatAnEarlierBuildRecorded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shop.db")
	check(t, path, "", require.NoError)
	recorded := check(t, path, `{"file": "`+dbfile.Number(path)+`"}`, require.NoError)
	require.Equal(t, outbox.Identity{File: dbfile.Number(path), Made: dbfile.Made(path)}, recorded)
}

// check opens the file, has it record before, if that is given, checks it, and returns what
// it has recorded then.
func check(t *testing.T, path, before string, want require.ErrorAssertionFunc) outbox.Identity {
	t.Helper()
	p, err := sqlite.Open(t.Context(), sqlite.Config{Path: path})
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	require.NoError(t, outboxdb.Migrate(t.Context(), p.DB(), 0))
	if before != "" {
		_, err := p.DB().ExecContext(t.Context(), "UPDATE outbox_settings SET value = ? WHERE name = 'identity'", before)
		require.NoError(t, err)
	}
	store := outboxdb.New(p.DB(), p.Reader())
	_, _, err = store.CheckIdentity(t.Context(), outbox.Stop)
	want(t, err)
	recorded, _, err := store.Identity(t.Context())
	require.NoError(t, err)
	return recorded
}
