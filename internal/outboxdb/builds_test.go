package outboxdb_test

import (
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

// store is what a relay runs on.
type store interface {
	relay.Store
	relay.Housekeeping
}

func earlier(t *testing.T, b *outboxdbtest.Bench, knew int) *outboxdb.Build {
	t.Helper()
	old, err := outboxdb.Earlier(b.Store, knew)
	require.NoError(t, err)
	return old
}

// O15: the oldest build that today's tables tolerate publishes beside today's, and so does the
// last one that had other statements.
func TestBuilds_O15_OldAndNewSideBySide(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		for _, knew := range []int{5, 8, 9} {
			t.Run(fmt.Sprint(knew), func(t *testing.T) { sideBySide(t, b, earlier(t, b, knew)) })
		}
	})
}

// sideBySide has two builds publish. One is stopped and started again while the other runs, each
// dies once with rows in hand that the other takes over: all is delivered, in order, once.
func sideBySide(t *testing.T, b *outboxdbtest.Bench, old store) {
	target := memory.New(memory.Config{})
	want := map[string][]string{}
	insert := func() {
		for range 10 {
			for _, row := range b.Insert(outboxdbtest.Numbered("key", 25)...) {
				want[row.PartitionKey] = append(want[row.PartitionKey], row.MessageID)
			}
		}
	}
	start := func(store store) (stop func()) {
		r, err := relay.New(relay.Config{
			Provider: "test", Store: store, Lanes: []relay.Lane{{Target: "default", Broker: target}},
			Outbox: outbox.Config{PollInterval: 20 * time.Millisecond, MaxPollInterval: 100 * time.Millisecond, Lease: time.Second}, Logger: slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		require.NoError(t, r.Start(t.Context()))
		return func() { require.NoError(t, r.Stop(t.Context())) }
	}
	done := func() {
		waittest.Until(t, func() bool { return b.Count("SELECT count(*) FROM outbox_queue") == 0 })
	}
	// dies leaves what was inserted in the hands of a member of a process that is gone.
	dies := func(store store) {
		ids, _, err := store.Lanes(t.Context(), []string{"default"})
		require.NoError(t, err)
		members, err := store.Join(t.Context(), fmt.Sprintf("%T", store), []relay.Joining{{Lane: ids[0], Target: "default"}}, time.Minute)
		require.NoError(t, err)
		m := &outboxdbtest.Member{Store: b.Store, T: t, ID: members[0], Lane: ids[0]}
		m.Parts, err = store.Take(t.Context(), m.ID, m.Lane, outboxdbtest.Partitions)
		require.NoError(t, err)
		require.Len(t, m.Parts, outboxdbtest.Partitions)
		renewed, err := store.Renew(t.Context(), []relay.Renewal{{Member: m.ID, Target: "default", Healthy: true}}, time.Minute)
		require.NoError(t, err)
		require.Equal(t, []relay.Renewed{{Member: m.ID, Parts: m.Parts}}, renewed)
		insert()
		c, err := store.Claim(t.Context(), m.Next(m.Look(1000)...))
		require.NoError(t, err)
		require.Len(t, c.Rows, 250)
		b.Expire()
	}
	dies(old)
	stopNew := start(b.Store)
	done()
	stopOld := start(old)
	insert()
	waittest.Until(t, func() bool {
		return b.Count("SELECT count(DISTINCT owner) FROM outbox_partitions") == 2
	}, "both have partitions")
	insert()
	stopNew()
	insert()
	done()
	stopOld()
	dies(b.Store)
	stopOld = start(old)
	done()
	stopNew = start(b.Store)
	insert()
	stopOld()
	insert()
	done()
	stopNew()
	got := map[string][]string{}
	for _, m := range target.Messages("ordering.order") {
		got[m.Key] = append(got[m.Key], m.ID)
	}
	require.Equal(t, want, got)
}

// O15: why builds of before 5 are not tolerated. What a publishing transaction of a process
// has in hand that died is decided by how that ended; they would free it at once.
func TestBuilds_O15_BeforeTransactions(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		const firstSlot = 1 << 48
		dead := func() *outboxdbtest.Member {
			m := b.Join("dead", time.Minute, outboxdbtest.Partitions)
			b.Insert("key")
			q := m.Next(m.Look(1)...)
			q.N += firstSlot
			c, err := b.Claim(t.Context(), q)
			require.NoError(t, err)
			require.Len(t, c.Rows, 1)
			b.Expire()
			return m
		}
		m := dead()
		reaped, err := b.Reap(t.Context(), m.ID, false)
		require.NoError(t, err)
		require.Len(t, reaped.Undecided, 1, "today's asks how it ended")
		require.EqualValues(t, 1, b.Count("SELECT count(*) FROM outbox_claims"))
		_, err = b.Finish(t.Context(), m.ID)
		require.NoError(t, err)

		m = dead()
		freed, err := earlier(t, b, 3).ReapBlindly(t.Context(), m.ID)
		require.NoError(t, err)
		require.Equal(t, outboxdbtest.Partitions, freed)
		require.Zero(t, b.Count("SELECT count(*) FROM outbox_claims"))
	})
}
