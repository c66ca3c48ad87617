package projection_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/internal/historydb"
	"github.com/waybill-go/waybill/internal/logtest"
	"github.com/waybill-go/waybill/projection"
)

type lines struct{ logtest.Log }

func (l *lines) have(text string) func() bool { return func() bool { return l.Has(text) } }

// N5: a build that can't read on, as a transaction that has written events is open, says
// for whom it waits and since when, in its status and in the log, until that has ended. It
// does so too if it has begun beside that transaction, and has read nothing.
func TestProjection_N5_SaysWhomItWaitsFor(t *testing.T) {
	t.Parallel()
	p, _ := dbtest.Postgres(t)
	w := newWorld(t, p)
	w.place(t, "l1")
	open, err := p.DB().BeginTx(t.Context(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = open.Rollback() })
	var pid int
	require.NoError(t, open.QueryRowContext(t.Context(), "INSERT INTO history (version, occurred_at, n, message_id, category, id, type, data)"+
		" VALUES (1, now(), 1, gen_random_uuid(), 'library::loan', 'late', 'Library.LoanPlaced.v1', '{\"loan_id\":\"late\"}') RETURNING pg_backend_pid()").Scan(&pid))
	w.place(t, "l2")

	log := &lines{}
	def, _ := currentLoans(1)
	ps, err := projection.New(w.units, []projection.Projection{def}, slog.New(slog.NewTextHandler(log, nil)))
	require.NoError(t, err)
	projection.Fast(ps)
	r := ps.Runner(p.Name(), nil)
	require.NoError(t, r.Start(t.Context()))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(t, r.Stop(ctx))
	})
	status := func() projection.Progress {
		list, err := projection.List(t.Context(), p)
		require.NoError(t, err)
		return list[0]
	}
	eventually(t, func() bool { h := status().Held; return h != nil && time.Since(h.Since) > 500*time.Millisecond }, "it waits")
	h := status().Held
	require.Len(t, h.By, 1)
	require.Equal(t, []any{pid, "idle in transaction"}, []any{h.By[0].PID, h.By[0].State})
	require.Contains(t, h.String(), h.By[0].String())
	require.Contains(t, h.By[0].Remedy(), "pg_terminate_backend")
	eventually(t, log.have("projection waits: a transaction that has written events is open"), "the log says so")
	require.True(t, log.have(h.By[0].Remedy())(), "and what helps")

	require.NoError(t, open.Commit())
	require.Nil(t, status().Held, "at once")
	w.wait(t, def.Name)
	require.Equal(t, []string{"l1", "l2", "late"}, w.view(t, "SELECT loan_id FROM current_loans ORDER BY 1"))
	eventually(t, log.have("projection goes on"), "the log says that, too")
	eventually(t, func() bool {
		n, err := p.Reader().NewSelect().Table("projection_positions").Where("held_by IS NOT NULL OR held_since IS NOT NULL").Count(t.Context())
		require.NoError(t, err)
		return n == 0
	})
}

// A prepared transaction has no session, and is ended by its name.
func TestTransaction_SaysWhoseItIs(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		historydb.Writer
		text, remedy string
	}{
		{historydb.Writer{PID: 17, Application: "shop", User: "ada", State: "idle in transaction", Since: at}, `pid 17, application "shop", user ada, open since 2026-01-02T03:04:05Z, idle in transaction`, "SELECT pg_terminate_backend(17)"},
		{historydb.Writer{Prepared: "it's", User: "ada", Since: at}, `prepared transaction "it's", user ada, open since 2026-01-02T03:04:05Z`, "COMMIT PREPARED 'it''s' or ROLLBACK PREPARED 'it''s'"},
		{historydb.Writer{PID: 17, Application: "", User: "ada"}, `pid 17, application "", user ada`, "SELECT pg_terminate_backend(17)"},
	} {
		require.Equal(t, c.text, projection.Transaction(c.Writer).String())
		require.Equal(t, c.remedy, projection.Transaction(c.Writer).Remedy())
	}
}
