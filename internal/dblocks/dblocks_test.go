package dblocks_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dblocks"
	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/internal/rights"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/uow"
)

// migrated is a database with all tables.
func migrated(t *testing.T) uow.Provider {
	t.Helper()
	p, _ := dbtest.Postgres(t)
	for _, f := range rights.Features() {
		require.NoError(t, f.Up(t.Context(), p.DB()))
	}
	return p
}

// begin is a transaction that has run a statement, and its session. It ends with the test.
func begin(t *testing.T, p uow.Provider, statement string) (tx bun.Tx, pid int) {
	t.Helper()
	tx, err := p.DB().BeginTx(t.Context(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	_, err = tx.ExecContext(t.Context(), statement)
	require.NoError(t, err)
	require.NoError(t, tx.NewRaw("SELECT pg_backend_pid()").Scan(t.Context(), &pid))
	return tx, pid
}

// waits has a statement wait, until the test ends.
func waits(t *testing.T, p uow.Provider, statement string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = p.DB().ExecContext(ctx, statement)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
}

func found(t *testing.T, p uow.Provider, n int) (all []dblocks.Wait) {
	t.Helper()
	waittest.Until(t, func() bool {
		var err error
		all, err = dblocks.Of(t.Context(), p.Reader(), 0, 0)
		require.NoError(t, err)
		return len(all) > 0 && all[0].Sessions == n
	})
	return all
}

// Who waits for somebody who waits isn't told of that one, but of who has the lock.
func TestOf_NamesWhoHasTheLock(t *testing.T) {
	t.Parallel()
	p := migrated(t)
	none, err := dblocks.Of(t.Context(), p.Reader(), 0, 0)
	require.NoError(t, err)
	require.Empty(t, none)

	reader, pid := begin(t, p, "SELECT FROM outbox_lanes")
	waits(t, p, "ALTER TABLE outbox_lanes ADD COLUMN mine text")
	found(t, p, 1)
	waits(t, p, "SELECT FROM outbox_lanes")
	all := found(t, p, 2)
	require.Len(t, all, 1)
	require.Equal(t, "outbox_lanes", all[0].Table)
	require.Contains(t, all[0].By, fmt.Sprintf("session %d (application ", pid))
	require.Regexp(t, `idle in transaction\)$`, all[0].By, "and nobody else")
	require.Equal(t, fmt.Sprintf("SELECT pg_terminate_backend(%d) ends it", pid), all[0].Remedy)
	require.Positive(t, all[0].Longest)
	late, err := dblocks.Of(t.Context(), p.Reader(), time.Hour, time.Hour)
	require.NoError(t, err)
	require.Empty(t, late)
	require.NoError(t, reader.Rollback())
	waittest.Until(t, func() bool {
		none, err := dblocks.Of(t.Context(), p.Reader(), 0, 0)
		return err == nil && len(none) == 0
	})
}

// A process that hangs in the middle of a unit of work has rows that others wait for: those of
// the inbox that it has claimed, for one that handles its messages now.
func TestOf_NamesWhoHasRows(t *testing.T) {
	t.Parallel()
	p := migrated(t)
	claim := "INSERT INTO inbox (subscription, message_id) VALUES ('a', 'b')"
	_, pid := begin(t, p, claim)
	waits(t, p, claim)
	all := found(t, p, 1)
	require.Len(t, all, 1)
	require.Empty(t, all[0].Table)
	require.Contains(t, all[0].By, fmt.Sprintf("session %d (application ", pid))
	require.Equal(t, fmt.Sprintf("SELECT pg_terminate_backend(%d) ends it", pid), all[0].Remedy)
	late, err := dblocks.Of(t.Context(), p.Reader(), 0, time.Hour)
	require.NoError(t, err)
	require.Empty(t, late, "each kind has its own time")
}

// A role without pg_monitor isn't told since when the session of another is at it: it has been for as
// long as somebody waits.
func TestOf_NamesWhoHasRowsToARoleThatDoesNotSeeThem(t *testing.T) {
	t.Parallel()
	p := migrated(t)
	claim := "INSERT INTO inbox (subscription, message_id) VALUES ('a', 'b')"
	_, pid := begin(t, p, claim)
	waits(t, p, claim)
	found(t, p, 1)
	tx, err := p.DB().BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, tx.Rollback()) }()
	_, err = tx.ExecContext(t.Context(), "CREATE ROLE dblocks_blind; DO $$ BEGIN EXECUTE format('GRANT USAGE ON SCHEMA %I TO dblocks_blind', current_schema()); END $$; SET LOCAL ROLE dblocks_blind")
	require.NoError(t, err)
	all, err := dblocks.Of(t.Context(), tx, 0, 0)
	require.NoError(t, err)
	var version int
	require.NoError(t, tx.NewRaw("SELECT current_setting('server_version_num')::int").Scan(t.Context(), &version))
	if version < 140000 {
		require.Empty(t, all, "since when a lock is waited for is in the session's row alone, which it doesn't see either")
		return
	}
	require.Len(t, all, 1)
	require.Equal(t, fmt.Sprintf("SELECT pg_terminate_backend(%d) ends it", pid), all[0].Remedy)
}

// Rows of the user's, in a transaction that uses no table of Waybill's, are theirs.
func TestOf_IsNotAboutTheirRows(t *testing.T) {
	t.Parallel()
	p := migrated(t)
	_, err := p.DB().ExecContext(t.Context(), "CREATE TABLE theirs (id integer PRIMARY KEY)")
	require.NoError(t, err)
	begin(t, p, "INSERT INTO theirs VALUES (1)")
	waits(t, p, "INSERT INTO theirs VALUES (1)")
	waittest.Until(t, func() bool {
		var waiting bool
		require.NoError(t, p.Reader().NewRaw("SELECT EXISTS (SELECT FROM pg_locks AS l JOIN pg_locks AS h ON h.pid = l.pid AND h.granted AND h.relation = 'theirs'::regclass WHERE NOT l.granted)").Scan(t.Context(), &waiting))
		return waiting
	})
	all, err := dblocks.Of(t.Context(), p.Reader(), 0, 0)
	require.NoError(t, err)
	require.Empty(t, all)
}

// A table of the user's is none of ours; a lock of an index is one of its table.
func TestOf_IsAboutWaybillsTables(t *testing.T) {
	t.Parallel()
	p := migrated(t)
	_, err := p.DB().ExecContext(t.Context(), "CREATE TABLE theirs (id integer)")
	require.NoError(t, err)
	begin(t, p, "LOCK TABLE theirs IN ACCESS EXCLUSIVE MODE")
	waits(t, p, "SELECT FROM theirs")
	_, pid := begin(t, p, "REINDEX INDEX inbox_pkey")
	waits(t, p, "SELECT FROM inbox WHERE subscription = 'a' AND message_id = 'b'")
	all := found(t, p, 1)
	require.Len(t, all, 1)
	require.Equal(t, "inbox", all[0].Table)
	require.Contains(t, all[0].By, fmt.Sprint(pid))
}

func TestOf_NoneOnSQLite(t *testing.T) {
	t.Parallel()
	all, err := dblocks.Of(t.Context(), dbtest.SQLite(t).Reader(), 0, 0)
	require.NoError(t, err)
	require.Empty(t, all)
}
