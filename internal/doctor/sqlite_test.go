package doctor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	"golang.org/x/sync/errgroup"

	"github.com/waybill-go/waybill/internal/dbfile"
	"github.com/waybill-go/waybill/uow/sqlite"
)

func (p *patient) path(t *testing.T) (path string) {
	t.Helper()
	require.NoError(t, p.Reader().NewRaw("SELECT file FROM pragma_database_list WHERE name = 'main'").Scan(t.Context(), &path))
	return path
}

func healthySQLite(t *testing.T) *patient {
	p := newPatient(t, openSQLite(t))
	require.Empty(t, p.examine(t))
	return p
}

// A program that opens the file in its own way.
func TestPragmas(t *testing.T) {
	for setting, test := range map[string]struct{ pragmas, what string }{
		"journal_mode": {"_pragma=journal_mode(DELETE)&_pragma=synchronous(FULL)", "it is delete"},
		"synchronous":  {"_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)", "it is 1, below FULL"},
	} {
		t.Run(setting, func(t *testing.T) {
			p, err := sqlite.Open(t.Context(), sqlite.Config{Path: t.TempDir() + "/a.db"})
			require.NoError(t, err)
			sick := newPatient(t, p)
			path := sick.path(t)
			require.NoError(t, p.Close())
			raw, err := sql.Open("sqlite", "file:"+path+"?"+test.pragmas)
			require.NoError(t, err)
			db := bun.NewDB(raw, sqlitedialect.New())
			t.Cleanup(func() { require.NoError(t, db.Close()) })
			sick.Provider = with{p, db, db}
			sick.has(t, "settings", Critical, setting, test.what, "PRAGMA "+setting)
		})
	}
}

// S10: a file that others may read is found, also if only the log is open to them,
// with the command that closes it.
func TestModes_S10(t *testing.T) {
	p := healthySQLite(t)
	require.NoError(t, os.Chmod(p.path(t)+"-wal", 0o644))
	p.has(t, "files", Warning, p.path(t), "others than its owner may read the database: "+p.path(t)+"-wal (0644)", "chmod 600 '"+p.path(t)+"-wal'")
	require.NoError(t, os.Chmod(p.path(t)+"-wal", 0o600))
	require.Empty(t, p.examine(t))
}

func TestWAL(t *testing.T) {
	p := healthySQLite(t)
	p.limits.wal = 1 << 20
	reading, err := p.Reader().BeginTx(t.Context(), nil)
	require.NoError(t, err)
	var n int
	require.NoError(t, reading.QueryRowContext(t.Context(), "SELECT count(*) FROM inbox").Scan(&n))
	for range 40 {
		p.exec(t, "INSERT INTO inbox (subscription, message_id) SELECT 's', hex(randomblob(64)) FROM (WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 500) SELECT n FROM n)")
	}
	p.has(t, "wal", Warning, p.path(t)+"-wal", "keeps it from being written back", "wal_checkpoint(TRUNCATE)")
	require.NoError(t, reading.Rollback())
}

func TestDisk(t *testing.T) {
	p := healthySQLite(t)
	left, known := dbfile.Room(p.path(t))
	require.True(t, known)
	p.limits.room = 2 * left
	p.has(t, "disk", Warning, p.path(t), "its disk has", "make room on its disk")
	p.limits.room = 32 * left
	p.has(t, "disk", Critical, p.path(t), "once that is used up", "make room on its disk")
}

func TestIntegrity(t *testing.T) {
	sick := newPatient(t, openSQLite(t))
	sick.exec(t, "INSERT INTO inbox (subscription, message_id) SELECT 's', hex(randomblob(64)) FROM (WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 5000) SELECT n FROM n)",
		"PRAGMA wal_checkpoint(TRUNCATE)")
	path := sick.path(t)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	copied := t.TempDir() + "/b.db"
	for i := len(text) - 40*4096; i < len(text)-20*4096; i++ {
		text[i] = 0xa5
	}
	require.NoError(t, os.WriteFile(copied, text, 0o600))
	p, err := sqlite.Open(t.Context(), sqlite.Config{Path: copied})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	found := false
	for _, f := range Examine(t.Context(), p, nil) {
		if f.Check == "integrity" {
			found = true
			require.Equal(t, Critical, f.Severity)
			require.Contains(t, f.What, "damaged")
		}
	}
	require.True(t, found)
}

// A large file is looked at for some seconds only, and that is said.
func TestIntegrity_TakesItsTimeOnly(t *testing.T) {
	p := newPatient(t, openSQLite(t))
	p.limits.integrity = time.Nanosecond
	require.Empty(t, p.examine(t))
	told := false
	for _, f := range examine(t.Context(), p.Provider, p.limits, p.outboxes) {
		told = told || f.Check == "integrity" && strings.Contains(f.What, "run it by hand")
	}
	require.True(t, told)
}

// A process that has the file locked for writing is found, and named where the system tells.
func TestLock(t *testing.T) {
	p := healthySQLite(t)
	p.limits.lock = 50 * time.Millisecond
	other, err := sqlite.Open(t.Context(), sqlite.Config{Path: p.path(t)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, other.Close()) })
	tx, err := other.DB().BeginTx(t.Context(), nil)
	require.NoError(t, err)
	who := "another process"
	if runtime.GOOS == "linux" {
		who = fmt.Sprintf("process %d (", os.Getpid())
	}
	p.has(t, "lock", Critical, p.path(t), who, "end it or its transaction")
	require.NoError(t, tx.Rollback())
	require.Empty(t, p.examine(t))
}

// Whoever waits in vain because others commit all the time has met no lock that somebody keeps:
// nobody has to be ended.
func TestLock_IsNotThatOfManyWriters(t *testing.T) {
	p := healthySQLite(t)
	p.limits.lock = 20 * time.Millisecond
	other, err := sqlite.Open(t.Context(), sqlite.Config{Path: p.path(t)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, other.Close()) })
	_, err = other.DB().ExecContext(t.Context(), "CREATE TABLE written (n)")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	var writer errgroup.Group
	writer.Go(func() error { // each has the lock for some milliseconds, and lets go of it for none
		for ctx.Err() == nil {
			tx, err := other.DB().BeginTx(context.WithoutCancel(ctx), nil)
			if err == nil {
				_, err = tx.ExecContext(context.WithoutCancel(ctx), "DELETE FROM written; INSERT INTO written WITH RECURSIVE a(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM a WHERE n < 5000) SELECT n FROM a")
				err = errors.Join(err, tx.Commit())
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	met := false
	for range 50 {
		for _, f := range examine(t.Context(), p.Provider, p.limits, p.outboxes) {
			require.False(t, f.Check == "lock" && f.Severity != OK, "%+v", f)
			met = met || f.Check == "lock" && strings.Contains(f.What, "others write all the time")
		}
		if met {
			break
		}
	}
	stop()
	require.NoError(t, writer.Wait())
	require.True(t, met)
}
