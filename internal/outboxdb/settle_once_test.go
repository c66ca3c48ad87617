package outboxdb_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/outbox"
)

// S4-13: published, sent when, no lock, no error: one statement.
// Conformance: S1-15.
func TestSettle_S4_13_OneStatement(t *testing.T) {
	require.Len(t, outboxdb.Postgres("settle"), 1)
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.Insert("a", "b")
		w := b.Join("w1", time.Minute, outboxdbtest.Partitions)
		failed := w.Settlement()
		rows := w.ClaimAll()
		failed.N = w.Settlement().N
		for _, row := range rows {
			failed.Failed = append(failed.Failed, relay.Failure{RowRef: row.Ref(), Attempts: 1, DueIn: -time.Second, Class: "transient", Error: "x"})
		}
		require.True(t, w.Settle(failed))
		rows = w.ClaimAll()
		require.True(t, w.Settle(w.Settlement(rows...)))
		all, err := b.Find(t.Context(), outbox.Filter{Limit: 10})
		require.NoError(t, err)
		require.Len(t, all, 2)
		for _, e := range all {
			require.Equal(t, outbox.Published, e.Status)
			require.NotNil(t, e.PublishedAt)
			require.Empty(t, e.LockedBy)
			require.Nil(t, e.LockedUntil)
			require.Empty(t, e.LastError)
			require.Equal(t, 2, e.Attempts)
		}
	})
}
