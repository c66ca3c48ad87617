package outboxdb_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/internal/historydb"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/outbox"
)

func (p *bygone) history() outbox.History {
	p.T.Helper()
	t, _, err := outboxdb.FindTargets(p.T.Context(), p.DB, "ordering")
	require.NoError(p.T, err)
	return t.History
}

// A history begins behind all that is being written, whoever is ended on the way; nobody
// takes it back.
// Conformance: S2-40.
func TestKeepHistory_BeginsBehindWhatIsBeingWritten(t *testing.T) {
	eachBygone(t, func(t *testing.T, p *bygone) {
		require.NoError(t, historydb.Migrations().Up(t.Context(), p.DB))
		s := outboxdb.New(p.DB, p.DB)
		require.ErrorContains(t, s.KeepHistoryAtOnce(t.Context(), "other", nil), "the database doesn't know the context")
		p.happen(1, 1)
		ctx, cancel := context.WithCancel(t.Context())
		err := s.KeepHistory(ctx, "ordering", func(string) { cancel() })
		require.ErrorContains(t, err, "the history of context ordering has not begun yet")
		require.Equal(t, outbox.HistoryStarting, p.history())
		p.joins()
		require.Equal(t, outbox.HistoryStarting, p.history(), "brokers are another matter")

		var told []string
		writer := func() {}
		if p.DB.Dialect().Name() == dialect.PG {
			tx, err := p.DB.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			_, err = tx.ExecContext(t.Context(), "LOCK TABLE outbox_messages IN ROW EXCLUSIVE MODE")
			require.NoError(t, err)
			writer = func() { require.NoError(t, tx.Commit()) }
		}
		require.NoError(t, s.KeepHistoryAtOnce(t.Context(), "ordering", func(waits string) {
			require.Equal(t, outbox.HistoryStarting, p.history())
			if told = append(told, waits); strings.Contains(waits, "writing") {
				writer()
			}
		}))
		require.Equal(t, outbox.HistoryOn, p.history())
		require.Len(t, told, map[bool]int{true: 2, false: 1}[p.DB.Dialect().Name() == dialect.PG])
		p.backfill()
		require.Equal(t, outbox.HistoryOn, p.history())
		require.NoError(t, s.KeepHistory(t.Context(), "ordering", nil), "it has begun")
	})
}

// Where nothing was ever written there is nobody to wait for; nor where events are kept.
func TestBeginHistory_AtOnce(t *testing.T) {
	eachBygone(t, func(t *testing.T, p *bygone) {
		require.NoError(t, historydb.Migrations().Up(t.Context(), p.DB))
		s := outboxdb.New(p.DB, p.DB)
		begin := func() outbox.History {
			state, err := s.BeginHistory(t.Context(), "ordering")
			require.NoError(t, err)
			require.Equal(t, state, p.history())
			p.Exec("UPDATE outbox_settings SET value = '{\"broker\":\"default\"}' WHERE name = 'targets:ordering'")
			return state
		}
		require.Equal(t, outbox.HistoryOn, begin())
		p.happen(1, 1)
		require.Equal(t, outbox.HistoryStarting, begin())
		p.Exec("INSERT INTO history (position, version, occurred_at, n, message_id, category, id, type, data) VALUES (-1, 1, '2026-01-02T03:04:05Z', 1, '018f0000-0000-7000-8000-000000000001', 'ordering::order', 'a', 'Ordering.OrderPlaced.v1', '{}')")
		require.Equal(t, outbox.HistoryStarting, begin(), "what was imported says nothing of programs")
		p.Exec("UPDATE history SET position = 1")
		require.Equal(t, outbox.HistoryOn, begin())
	})
}
