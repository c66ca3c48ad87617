package outboxdb_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/outbox"
)

var _ relay.Housekeeping = (*outboxdb.Store)(nil)

// Two relays share a database while rows come, one of them is stopped in the middle: all
// is delivered, in order, once.
func TestRelay_DeliversInOrderFromBothDatabases(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		target := memory.New(memory.Config{})
		start := func() *relay.Relay {
			r, err := relay.New(relay.Config{
				Provider: "test", Store: b.Store, Lanes: []relay.Lane{{Target: "default", Broker: target}},
				Outbox: outbox.Config{PollInterval: 20 * time.Millisecond, MaxPollInterval: 100 * time.Millisecond, Lease: 5 * time.Second}, Logger: slog.New(slog.DiscardHandler),
			})
			require.NoError(t, err)
			require.NoError(t, r.Start(t.Context()))
			return r
		}
		first, second := start(), start()
		want := map[string][]string{}
		for n := range 40 {
			var keys []string
			for k := range 25 {
				keys = append(keys, fmt.Sprint("key-", k))
			}
			for _, row := range b.Insert(keys...) {
				want[row.PartitionKey] = append(want[row.PartitionKey], row.MessageID)
			}
			second.Hint()
			if n == 20 {
				require.NoError(t, first.Stop(t.Context()))
			}
		}
		waittest.Until(t, func() bool { return b.Count("SELECT count(*) FROM outbox_queue") == 0 })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.NoError(t, second.Stop(ctx))
		got := map[string][]string{}
		for _, topic := range target.Topics() {
			for _, m := range target.Messages(topic) {
				got[m.Key] = append(got[m.Key], m.ID)
			}
		}
		require.Equal(t, want, got)
		for _, left := range []string{"outbox_claims", "outbox_members", "outbox_partitions WHERE owner IS NOT NULL"} {
			require.Zero(t, b.Count("SELECT count(*) FROM "+left), left)
		}
		require.EqualValues(t, 1000, b.Count("SELECT sum(published) FROM outbox_log"))
	})
}
