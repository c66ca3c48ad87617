package outboxdb_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
)

// A row that is handed back keeps its losses: it never reached the broker, so nothing
// says that it doesn't kill [BACKFORGIVES]. A failure that is written clears them.
func TestSettle_HandingBackKeepsLosses(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.Insert("a")
		b.Exec("UPDATE outbox_queue SET losses = 3")
		m := b.Join("one", time.Minute, 100)
		require.Equal(t, 3, m.ClaimAll()[0].Losses)
		require.True(t, m.Settle(m.Settlement()))
		rows := m.ClaimAll()
		require.Equal(t, 3, rows[0].Losses)

		w := m.Settlement()
		w.Failed = []relay.Failure{{RowRef: rows[0].Ref(), Attempts: 1, Class: "transient", Error: "not now"}}
		require.True(t, m.Settle(w))
		require.Zero(t, m.Look(1)[0].Losses)
	})
}

// A row at which the process panicked is counted though nothing else came of its claim: what is
// never counted is tried for ever.
func TestSettle_ALossAloneIsCounted(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.Insert("a", "b")
		m := b.Join("one", time.Minute, 100)
		rows := m.ClaimAll()
		w := m.Settlement()
		w.Lost = []relay.RowRef{rows[0].Ref()}
		require.True(t, m.Settle(w))
		w = m.Settlement(m.Claim(m.Look(10)...)[1])
		w.Lost = []relay.RowRef{rows[0].Ref()}
		require.True(t, m.Settle(w), "beside one that is published")
		require.EqualValues(t, 1, b.Count("SELECT count(*) FROM outbox_queue"))
		require.EqualValues(t, 2, b.Count("SELECT losses FROM outbox_queue WHERE seq = ?", rows[0].Seq))
	})
}
