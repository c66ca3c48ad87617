package outboxdb_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
)

// Members that nobody ends, as nobody serves their target any more, don't stay.
func TestReapLapsedEndsWhoIsLongDead(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		m := b.Join("host-1-w1", time.Minute, outboxdbtest.Partitions)
		b.Insert("a")
		m.ClaimAll()
		n, err := b.ReapLapsed(t.Context(), 0)
		require.NoError(t, err)
		require.Zero(t, n)
		b.Expire()
		n, err = b.ReapLapsed(t.Context(), 2*time.Hour)
		require.NoError(t, err)
		require.Zero(t, n, "an hour ago is not long enough")
		n, err = b.ReapLapsed(t.Context(), time.Minute)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, 1, mustFind(t, b, 1).Losses)
		require.Zero(t, b.Count("SELECT count(*) FROM outbox_partitions WHERE owner IS NOT NULL"))
	})
}
