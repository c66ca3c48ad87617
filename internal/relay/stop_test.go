package relay_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/outbox"
)

// A stop settles what is out and releases everything: another process goes on
// at once, not when leases have run out.
func TestProcessor_StopReleases(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.Insert("a")
		m := memory.New(memory.Config{})
		cfg := quick()
		cfg.Lease = time.Hour
		cfg.PublishTimeout = time.Minute
		first := processor(t, b, cfg, to(m))
		statuses(t, b, map[outbox.Status]int{outbox.Published: 1})
		require.NoError(t, first.Stop(t.Context()))
		require.NoError(t, first.Stop(t.Context()))
		for _, left := range []string{"outbox_claims", "outbox_members", "outbox_partitions WHERE owner IS NOT NULL"} {
			require.Zero(t, b.Count("SELECT count(*) FROM "+left), left)
		}
		b.Insert("b")
		processor(t, b, cfg, to(m))
		statuses(t, b, map[outbox.Status]int{outbox.Published: 2})
		require.Error(t, first.Start(t.Context()), "a processor starts once")
	})
}

// S1-26, S1-13: a stop settles what was out: nothing that the broker has stored stays
// unpublished, and nothing stays in hand.
func TestProcessor_S1_26_StopSettlesWhatIsOut(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.Insert(outboxdbtest.Numbered("k", 100)...)
		m := memory.New(memory.Config{})
		release := m.Stall()
		defer release()
		cfg := quick()
		cfg.BatchSize, cfg.Lease = 10, time.Minute
		p := processor(t, b, cfg, to(m))
		eventually(t, func() bool { return p.Status()[target].InFlight > 0 }, "something is out")
		stopped := make(chan error, 1)
		go func() { stopped <- p.Stop(context.Background()) }()
		eventually(t, func() bool { return !p.Status()[target].Running }, "it stops")
		release()
		require.NoError(t, <-stopped)
		arrived := map[string]bool{}
		for _, id := range ids(m.Messages(orders)) {
			arrived[id] = true
		}
		require.NotEmpty(t, arrived)
		for _, e := range entries(t, b) {
			require.Equal(t, arrived[e.MessageID], e.Status == outbox.Published)
			require.NotEqual(t, outbox.Processing, e.Status)
		}
	})
}
