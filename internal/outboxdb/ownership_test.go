package outboxdb_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/outbox"
)

// exclusive is a broker that reports two calls with the same key at the same time,
// whoever makes them: two would be owners of one partition.
type exclusive struct {
	broker.Broker

	t  *testing.T
	in *sync.Map
}

func (e exclusive) Publish(ctx context.Context, messages []broker.Message) error {
	mine := map[string]bool{}
	for _, m := range messages {
		if mine[m.Key] {
			continue
		}
		mine[m.Key] = true
		if _, other := e.in.LoadOrStore(m.Key, true); other {
			e.t.Errorf("key %s is in two calls", m.Key)
		}
	}
	err := e.Broker.Publish(ctx, messages)
	for key := range mine {
		e.in.Delete(key)
	}
	return err
}

// fleet are processes that publish to one broker.
type fleet struct {
	*bench

	t      *testing.T
	broker *memory.Broker
	in     sync.Map
}

func (f *fleet) start() *relay.Relay {
	f.t.Helper()
	r, err := relay.New(relay.Config{
		Provider: "test", Store: f.Store, Lanes: []relay.Lane{{Target: "default", Broker: exclusive{f.broker, f.t, &f.in}}}, Logger: slog.New(slog.DiscardHandler),
		Outbox: outbox.Config{PollInterval: 20 * time.Millisecond, MaxPollInterval: 100 * time.Millisecond, Lease: 10 * time.Second, BatchSize: 20},
	})
	require.NoError(f.t, err)
	require.NoError(f.t, r.Start(f.t.Context()))
	f.t.Cleanup(func() { f.stop(r) })
	return r
}

func (f *fleet) stop(r *relay.Relay) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(f.t.Context()), time.Minute)
	defer cancel()
	require.NoError(f.t, r.Stop(ctx))
}

// shared waits until partitions are shared like that, by the database.
func (f *fleet) shared(want ...int) {
	f.t.Helper()
	var got []int
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); <-time.After(20 * time.Millisecond) {
		by := map[string]int{}
		var all []string
		require.NoError(f.t, f.DB.NewRaw("SELECT cast(owner AS text) FROM outbox_partitions WHERE owner IS NOT NULL").Scan(f.t.Context(), &all))
		for _, owner := range all {
			by[owner]++
		}
		if got = slices.Sorted(maps.Values(by)); slices.Equal(got, want) {
			return
		}
	}
	require.Equal(f.t, want, got)
}

// delivered waits until nothing is queued, and says that all of it was published once
// and in order.
func (f *fleet) delivered(rows []outbox.Row) {
	f.t.Helper()
	waittest.Until(f.t, func() bool { return f.Count("SELECT count(*) FROM outbox_queue") == 0 })
	want, got := map[string][]string{}, map[string][]string{}
	for _, row := range rows {
		want[row.PartitionKey] = append(want[row.PartitionKey], row.MessageID)
	}
	for _, m := range f.broker.Messages("ordering.order") {
		got[m.Key] = append(got[m.Key], m.ID)
	}
	require.Equal(f.t, want, got)
}

// C-40, S2-30, C-43, A25, S2-10, S4-10, F-25: who is alone has all partitions; whoever
// joins gets an equal part, also of those that start together, and what one leaves goes
// to the others, while rows come and are published once and in order, and no key is in
// two hands.
func TestMembers_C_40_S2_30_JoinAndLeave(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		f := &fleet{bench: &bench{b}, t: t, broker: memory.New(memory.Config{})}
		var rows []outbox.Row
		more := func() {
			for range 5 {
				rows = append(rows, b.Insert(outboxdbtest.Numbered("k", 40)...)...)
			}
		}
		first := f.start()
		f.shared(8)
		more()
		second := f.start()
		f.shared(4, 4)
		more()
		f.start()
		f.shared(2, 3, 3)
		more()
		f.stop(first) // the eldest
		f.shared(4, 4)
		more()
		f.stop(second)
		f.shared(8)
		for range 2 { // at once
			f.start()
		}
		more()
		f.shared(2, 3, 3)
		f.delivered(rows)
	})
}

// S2-33, C-41, F-19: a member that was taken for dead learns it from its next renewal,
// and comes back: it is given partitions again, and nothing is lost or published twice.
func TestMembers_S2_33_C_41_F_19_TakenForDead(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		f := &fleet{bench: &bench{b}, t: t, broker: memory.New(memory.Config{})}
		f.start()
		f.shared(8)
		was := b.Count("SELECT max(member) FROM outbox_members")
		r, err := b.Reap(t.Context(), relay.MemberID(was), true)
		require.NoError(t, err)
		require.True(t, r.Done)
		rows := b.Insert(outboxdbtest.Numbered("k", 40)...)
		f.shared(8)
		require.NotEqual(t, was, b.Count("SELECT max(member) FROM outbox_members"))
		f.delivered(rows)
	})
}

// F-20: a process takes partitions only of the targets that it has a lane for, and only
// members of these share them.
func TestMembers_F_20_OnlyWhoHasTheLaneShares(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		f := &fleet{bench: &bench{b}, t: t, broker: memory.New(memory.Config{})}
		f.start()
		f.shared(8)
		partner := outboxdbtest.Row("a")
		partner.TargetBroker = "partner"
		b.InsertRows(partner)
		_, _, err := b.Lanes(t.Context(), []string{"partner"})
		require.NoError(t, err)
		rows := b.Insert("a")
		waittest.Until(t, func() bool { return b.Count("SELECT count(*) FROM outbox_queue") == 1 })
		require.Equal(t, rows[0].MessageID, f.broker.Messages("ordering.order")[0].ID)
		require.EqualValues(t, 8, b.Count("SELECT count(*) FROM outbox_partitions WHERE owner IS NULL"))
		require.EqualValues(t, 1, f.stats("partner").Counts[outbox.Pending], "it is shown")
	})
}

// S2-12: three members have the same part of 10,000 keys, give or take 5 % of all.
func TestMembers_S2_12_KeysAreSpread(t *testing.T) {
	const keys, partitions = 10000, 64
	counts := make([]float64, 3)
	for n := range keys {
		counts[outbox.PartitionOf(fmt.Sprint(outboxdbtest.Row("").ID, n), partitions)%3]++
	}
	for _, n := range counts {
		require.InDelta(t, 1.0/3, n/keys, 0.05)
	}
}
