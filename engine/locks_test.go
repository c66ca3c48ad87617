package engine

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/dblocks"
	"github.com/waybill-go/waybill/uow/postgres"
)

// While somebody has a table locked, commits hang: health names the session, and the statement
// that ends it. Nothing else would, as the relay goes on with what it has.
func TestHealth_SaysWhoHasATableThatCommitsNeed(t *testing.T) {
	b := setupOn(t, openPostgres(t, postgres.Config{DSN: newDatabaseOn(t).String()}))
	e := b.start(b.config())
	b.sell(1)
	tx, err := b.db.DB().BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	var pid int
	require.NoError(t, tx.NewRaw("SELECT pg_backend_pid()").Scan(t.Context(), &pid))
	_, err = tx.ExecContext(t.Context(), "LOCK TABLE outbox_lanes")
	require.NoError(t, err)
	saved := make(chan error, 1)
	go func() { saved <- b.repo.Save(t.Context(), newSale(2)) }()

	var found reason
	eventually(t, func() bool {
		all := e.diagnose(t.Context()).Reasons // of what else can't go on, too
		i := slices.IndexFunc(all, func(r reason) bool { return r.Code == "table_locked" })
		if i >= 0 {
			found = all[i]
		}
		return i >= 0
	})
	require.Equal(t, stuck, found.State)
	require.Contains(t, found.Text, "for the lock of table outbox_lanes, the first for ")
	require.Contains(t, found.Text, fmt.Sprintf("which session %d (application ", pid))
	require.Contains(t, found.Text, fmt.Sprintf("SELECT pg_terminate_backend(%d) ends it", pid))

	require.NoError(t, tx.Rollback())
	require.NoError(t, <-saved)
	eventually(t, func() bool { return len(e.diagnose(t.Context()).Reasons) == 0 })
}

// A process that hangs in the middle of a unit of work keeps rows, and those who wait for them stand still.
func TestHealth_SaysWhoHasRowsThatOthersWaitFor(t *testing.T) {
	wait := dblocks.Wait{Sessions: 2, Longest: time.Minute, By: `session 7 (application "", user ann, idle in transaction)`, Remedy: "SELECT pg_terminate_backend(7) ends it"}
	all := outboxSight{locks: []dblocks.Wait{wait}}.reasons()
	require.Len(t, all, 1)
	require.Equal(t, "rows_locked", all[0].Code)
	require.Equal(t, degraded, all[0].State)
	require.Contains(t, all[0].what, `2 sessions wait for rows that other transactions have, one of which has been open for 1m0s: that of session 7 (application "", user ann, idle in transaction)`)
	require.Contains(t, all[0].remedy, "SELECT pg_terminate_backend(7) ends it")
}
