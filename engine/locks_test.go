package engine

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

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
