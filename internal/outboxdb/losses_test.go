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
