package outboxdb_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/outbox"
)

// What is promised is settled: a row that is undelivered, held, put back by an operator
// below what was promised before, or given up though it may have arrived, keeps the
// promise where it is.
func TestPromiseStopsAtWhatIsNotSettled(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		m := b.Join("host-1-w1", time.Minute, outboxdbtest.Partitions)
		var memory outboxdb.Promises
		settled := func() time.Time {
			t.Helper()
			var p outbox.Promise
			require.Eventually(t, func() bool { // the horizon has to pass
				var ok bool
				var err error
				p, ok, err = b.Promise(t.Context(), "default", &memory)
				require.NoError(t, err)
				return ok
			}, 10*time.Second, 10*time.Millisecond)
			require.False(t, p.Settled.After(p.AsOf))
			return p.Settled
		}
		begin := settled()
		b.Insert("a", "abandoned", "held")
		first := mustFind(t, b, 1).CreatedAt
		for range 3 {
			require.False(t, settled().After(first))
		}
		settleEach(m, m.ClaimAll()) // "a" stays in hand no more, and undelivered
		require.False(t, settled().After(first))
		for _, r := range m.Look(10) {
			if r.Seq == 1 {
				m.Settle(m.Settlement(m.Claim(r)...))
			}
		}
		third := mustFind(t, b, 3).CreatedAt
		require.Eventually(t, func() bool { return settled().Equal(third) }, 10*time.Second, 10*time.Millisecond, "what was refused for good isn't there")
		change(t, b, outbox.Filter{Held: true}, outbox.Change{Verb: outbox.VerbSkip})
		require.False(t, settled().After(third), "it may have arrived")
		b.Exec("UPDATE outbox_abandoned SET maybe_delivered = FALSE")
		require.Eventually(t, func() bool { return settled().After(third) }, 10*time.Second, 10*time.Millisecond)

		change(t, b, outbox.Filter{Seqs: []int64{2}}, outbox.Change{Verb: outbox.VerbRetry})
		require.True(t, settled().Equal(mustFind(t, b, 2).CreatedAt), "an operator puts it back below")
		require.False(t, begin.After(first))
	})
}
