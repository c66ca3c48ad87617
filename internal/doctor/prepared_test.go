package doctor

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/historydb"
	"github.com/waybill-go/waybill/repository"
)

// A prepared transaction has no session, and may commit all the same: who reads the history waits
// for it, and says so. It is here as it needs a server that has such.
func TestHistory_APreparedTransactionIsWaitedFor(t *testing.T) {
	t.Parallel()
	p := openPostgres(t)
	require.NoError(t, historydb.Migrations().Up(t.Context(), p.DB()))
	require.NoError(t, repository.Migrations().Up(t.Context(), p.DB()))
	exec := func(query string) {
		t.Helper()
		_, err := p.DB().ExecContext(t.Context(), query)
		require.NoError(t, err)
	}
	keep := func(id string) string {
		return "INSERT INTO history (version, occurred_at, n, message_id, category, id, type, data)" +
			" VALUES (1, now(), 1, gen_random_uuid(), 'shop::order', '" + id + "', 'Shop.Placed.v1', '{}')"
	}
	r, at := historydb.NewReader(p.Reader(), historydb.Filter{}), int64(0)
	next := func() (ids []string, page historydb.Page) {
		t.Helper()
		page, err := r.Page(t.Context(), at, 0, 10)
		require.NoError(t, err)
		for _, e := range page.Events {
			ids = append(ids, e.AggregateID)
		}
		at = page.UpTo
		return ids, page
	}
	exec(keep("before"))
	ids, _ := next()
	require.Equal(t, []string{"before"}, ids)
	exec("BEGIN; " + keep("late") + "; SAVEPOINT s; " + keep("too") + "; PREPARE TRANSACTION 'late one'")
	t.Cleanup(func() {
		if t.Failed() { // it would keep its database
			_, _ = p.DB().ExecContext(context.Background(), "ROLLBACK PREPARED 'late one'")
		}
	})
	exec(keep("early"))
	for range 3 {
		ids, _ = next()
		require.Empty(t, ids)
	}
	_, page := next()
	who, err := historydb.Writers(t.Context(), p.Reader(), page.Writers)
	require.NoError(t, err)
	require.Len(t, who, 1)
	require.Equal(t, []any{0, "late one", "doctor"}, []any{who[0].PID, who[0].Prepared, who[0].User})
	exec("COMMIT PREPARED 'late one'")
	ids, _ = next()
	require.Equal(t, []string{"late", "too", "early"}, ids)
}
