package outbox_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/outbox/outboxtest"
	"github.com/waybill-go/waybill/uow/postgres"
)

// slow takes its time for each call.
type slow struct {
	broker.Broker
	takes time.Duration
}

func (s slow) Publish(ctx context.Context, messages []broker.Message) error {
	select {
	case <-time.After(s.takes):
	case <-ctx.Done():
	}
	return s.Broker.Publish(ctx, messages)
}

// owned is how many partitions of target "default" a processor has.
func owned(p *outbox.Processor) int { return p.Status()["default"].Partitions }

// A29: leases are renewed while calls follow each other for longer than a lease:
// another process that waits for one takes nothing.
func TestProcessor_A29_LeaseIsRenewedWhileCallsRun(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		rows := b.Insert("a", "a", "a", "a", "a", "a")
		m := memory.New(memory.Config{})
		cfg := quick()
		cfg.Workers, cfg.BatchSize, cfg.Lease, cfg.PublishTimeout = 1, 1, 3*time.Second, 2*time.Second
		first := processor(t, b, cfg, lane(slow{m, 800 * time.Millisecond}))
		require.Eventually(t, func() bool { return owned(first) == outboxtest.Partitions }, 10*time.Second, time.Millisecond)
		var taken, expired int
		for deadline := time.Now().Add(time.Minute); len(m.Messages(topic)) < len(rows); {
			require.True(t, time.Now().Before(deadline))
			leases, _, err := b.Acquire(t.Context(), outboxtest.Owner("waiting", time.Minute), outboxtest.Partitions)
			require.NoError(t, err)
			taken += len(leases)
			found, err := b.Membership(t.Context(), "default")
			require.NoError(t, err)
			expired += found.Free
			<-time.After(5 * time.Millisecond)
		}
		statuses(t, b, map[outbox.Status]int{outbox.Published: len(rows)})
		require.Zero(t, taken)
		require.Zero(t, expired)
		require.Len(t, m.Messages(topic), len(rows))
		for _, e := range b.Entries() {
			require.Zero(t, e.Losses)
		}
	})
}

// F-13: who has lost its lease writes nothing back: it is counted, and what the
// new owner made of the rows stays.
func TestProcessor_F_13_LateWriteBackIsCounted(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		b.Insert("a", "b")
		m := memory.New(memory.Config{})
		release := m.Stall()
		defer release()
		cfg := quick()
		cfg.Workers, cfg.Lease = 1, time.Minute
		p := processor(t, b, cfg, lane(m))
		inHand := func() bool { return p.Status()["default"].InFlight == 2 }
		require.Eventually(t, inHand, 10*time.Second, time.Millisecond)
		var heir outboxtest.Worker
		for len(heir.Leases) < outboxtest.Partitions {
			b.Expire()
			w := b.Worker("heir", outboxtest.Partitions, time.Hour)
			w.Leases, heir = append(w.Leases, heir.Leases...), w
		}
		c := heir.Claim(2)
		require.Len(t, c.Rows, 2)
		heir.Settle(c, outboxtest.All(c, outbox.Outcome{Status: outbox.Failed, Class: "transient", Error: "the heir's words", After: time.Hour})...)
		before := b.Entries()
		release()
		require.Eventually(t, func() bool { return p.Status()["default"].Stale == 2 }, 10*time.Second, time.Millisecond)
		require.Equal(t, before, b.Entries())
	})
}

// F-18: there is no session whose end could cost anything: connections are cut
// again and again while a processor works, and nothing is lost, published twice
// or out of order.
func TestProcessor_F_18_LostConnectionsCostNothing(t *testing.T) {
	t.Parallel()
	home := openPostgres(t)
	admin := outboxtest.Open(t, home)
	var schema string
	require.NoError(t, admin.DB.NewRaw("SELECT current_schema()").Scan(t.Context(), &schema))
	dsn := os.Getenv("WAYBILL_POSTGRES")
	joint := "?"
	if strings.Contains(dsn, "?") {
		joint = "&"
	}
	cut, err := postgres.Open(t.Context(), postgres.Config{DSN: dsn + joint + "application_name=" + schema, Schema: schema})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cut.Close()) })

	var rows []outbox.Row
	for range 30 {
		rows = append(rows, admin.Insert(outboxtest.Numbered("k", 40)...)...)
	}
	m := memory.New(memory.Config{})
	cfg := quick()
	cfg.BatchSize, cfg.Lease = 10, 30*time.Second
	start(t, outbox.ProcessorConfig{
		Provider: "default", Store: outbox.NewStore(cut.DB(), cut.Reader()), Outbox: cfg,
		Lanes: []outbox.Lane{lane(slow{m, 20 * time.Millisecond})},
	})
	cuts := 0
	for round := range 6 {
		require.Eventually(t, func() bool { return len(m.Messages(topic)) >= 150*round+1 }, time.Minute, 10*time.Millisecond)
		var n int
		require.NoError(t, admin.DB.NewRaw("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = ?", schema).Scan(t.Context(), &n))
		cuts += n
	}
	require.Positive(t, cuts)
	statuses(t, admin, map[outbox.Status]int{outbox.Published: len(rows)})
	require.Len(t, m.Messages(topic), len(rows))
	require.Equal(t, rowsByKey(rows), byKey(m.Messages(topic)))
	for _, e := range admin.Entries() {
		require.Equal(t, 1, e.Attempts, "a claim that was not answered costs nothing (F-34)")
	}
}

// F-19: a worker that was taken for dead, and isn't, announces itself again and
// goes on; nobody takes a running lease from it meanwhile.
func TestProcessor_F_19_TakenForDead(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		m := memory.New(memory.Config{})
		first := processor(t, b, quick(), lane(m))
		require.Eventually(t, func() bool { return owned(first) == outboxtest.Partitions }, 10*time.Second, time.Millisecond)
		b.Exec("DELETE FROM outbox_workers")
		b.Insert("a")
		require.Empty(t, b.Worker("other", outboxtest.Partitions, time.Minute).Leases)
		statuses(t, b, map[outbox.Status]int{outbox.Published: 1})
		require.Eventually(t, func() bool {
			m, err := b.Membership(t.Context(), "default")
			return err == nil && m.Workers == 2
		}, 20*time.Second, 5*time.Millisecond)
		require.Equal(t, outboxtest.Partitions, owned(first))
		require.Zero(t, first.Status()["default"].Stale)
	})
}

// F-20: a process takes partitions only of the targets that it has a lane for,
// and only their workers share them.
func TestProcessor_F_20_OnlyWhoHasTheLaneShares(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		mine := outboxtest.Row("a")
		theirs := mine
		theirs.ID, theirs.TargetBroker = outboxtest.Row("a").ID, "partner"
		m, partner := memory.New(memory.Config{}), memory.New(memory.Config{})
		first := processor(t, b, quick(), lane(m))
		second := processor(t, b, quick(), outbox.Lane{Target: "partner", Broker: partner})
		b.InsertRows(mine, theirs)
		statuses(t, b, map[outbox.Status]int{outbox.Published: 2})
		require.Eventually(t, func() bool {
			return owned(first) == outboxtest.Partitions && second.Status()["partner"].Partitions == outboxtest.Partitions
		}, 20*time.Second, time.Millisecond)
		require.Len(t, m.Messages(topic), 1)
		require.Len(t, partner.Messages(topic), 1)
	})
}

// F-25: what a worker has to give up while a call of it is out, it gives up when
// the call has ended.
func TestProcessor_F_25_ReleasesAfterTheCall(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		rows := b.Insert(outboxtest.Numbered("k", 100)...) // of all partitions
		m := memory.New(memory.Config{})
		release := m.Stall()
		defer release()
		cfg := quick()
		cfg.Workers, cfg.Lease, cfg.PublishTimeout = 1, 2*time.Minute, time.Minute
		first := processor(t, b, cfg, lane(m))
		require.Eventually(t, func() bool { return first.Status()["default"].InFlight == len(rows) }, 20*time.Second, time.Millisecond)
		second := processor(t, b, cfg, lane(m))
		require.Eventually(t, func() bool {
			m, err := b.Membership(t.Context(), "default")
			return err == nil && m.Workers == 2
		}, 20*time.Second, time.Millisecond)
		b.Insert(outboxtest.Numbered("k", 100)...) // wakes nobody: who holds them looks
		for range 20 {
			require.Zero(t, owned(second))
			<-time.After(10 * time.Millisecond)
		}
		require.Equal(t, len(rows), first.Status()["default"].InFlight)
		release()
		require.Eventually(t, func() bool {
			return owned(first) == outboxtest.Partitions/2 && owned(second) == outboxtest.Partitions/2
		}, 20*time.Second, time.Millisecond)
		statuses(t, b, map[outbox.Status]int{outbox.Published: 200})
		require.Len(t, m.Messages(topic), 200)
		require.Zero(t, first.Status()["default"].Stale+first.Status()["default"].TakenOver+second.Status()["default"].TakenOver)
	})
}
