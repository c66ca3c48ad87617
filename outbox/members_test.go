package outbox_test

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/outbox/outboxtest"
	"github.com/waybill-go/waybill/uow/postgres"
)

// member is a configuration of a process with one worker, whose death others
// notice soon.
func member() outbox.Config {
	cfg := quick()
	cfg.Workers, cfg.Lease = 1, time.Second
	return cfg
}

// owners are the partitions of each worker whose lease runs, as the database has
// them.
func owners(t *testing.T, b *outboxtest.Bench) map[string]int {
	t.Helper()
	now := "clock_timestamp()"
	if b.DB.Dialect().Name().String() == "sqlite" {
		now = "strftime('%Y-%m-%dT%H:%M:%fZ','now')"
	}
	var found []struct {
		LockedBy string
		N        int
	}
	require.NoError(t, b.DB.NewRaw("SELECT locked_by, count(*) AS n FROM outbox_partitions WHERE locked_until > "+now+" GROUP BY locked_by").Scan(t.Context(), &found))
	shares := map[string]int{}
	for _, f := range found {
		shares[f.LockedBy] = f.N
	}
	return shares
}

// shared waits until the partitions are shared like that.
func shared(t *testing.T, b *outboxtest.Bench, want ...int) {
	t.Helper()
	var got []int
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); <-time.After(10 * time.Millisecond) {
		got = slices.Sorted(maps.Values(owners(t, b)))
		if slices.Equal(got, want) {
			return
		}
	}
	require.Equal(t, want, got)
}

// exclusive is a broker that reports two calls with the same key at the same
// time, whoever makes them: two would be owners of one partition.
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

// feed inserts rows until the returned function is called, which returns how
// many there are.
func feed(t *testing.T, b *outboxtest.Bench) (stop func() []outbox.Row) {
	ended, gone := make(chan struct{}), make(chan struct{})
	var rows []outbox.Row
	go func() {
		defer close(gone)
		for n := 0; ; n++ {
			select {
			case <-ended:
				return
			case <-time.After(5 * time.Millisecond):
			}
			row := outboxtest.Row(fmt.Sprintf("k-%d", n%40))
			query, err := outbox.Insert([]outbox.Row{row}).AppendQuery(b.DB.QueryGen(), nil)
			if err == nil {
				_, err = b.DB.ExecContext(context.Background(), string(query))
			}
			if err != nil {
				t.Errorf("insert: %v", err)
				return
			}
			rows = append(rows, row)
		}
	}()
	return sync.OnceValue(func() []outbox.Row {
		close(ended)
		<-gone
		return rows
	})
}

// C-40, S2-30: who is alone has all partitions; whoever joins gets an equal
// part, and what a worker leaves or dies with goes to the others, while rows come
// and are published once and in order, and no key is in two hands.
func TestMembers_C_40_S2_30_JoinLeaveDie(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		m, in := memory.New(memory.Config{}), &sync.Map{}
		join := func() *outbox.Processor { return processor(t, b, member(), lane(exclusive{Broker: m, t: t, in: in})) }
		stop := feed(t, b)
		defer stop()
		first := join()
		shared(t, b, 8)
		second := join()
		shared(t, b, 4, 4)
		third := join()
		shared(t, b, 2, 3, 3)
		require.NoError(t, first.Stop(t.Context())) // the eldest leaves
		shared(t, b, 4, 4)
		kill(t, second) // the one that is the eldest now dies
		shared(t, b, 8)
		require.Eventually(t, func() bool { return third.Status()["default"].Partitions == outboxtest.Partitions }, 10*time.Second, time.Millisecond)
		fourth, fifth := join(), join() // two at once
		shared(t, b, 2, 3, 3)
		kill(t, third)
		kill(t, fifth)
		shared(t, b, 8)
		eventually(t, func() bool {
			alive, err := b.Membership(t.Context(), "default")
			return err == nil && alive.Workers == 1 && alive.Free == 0
		}, "the dead are forgotten")
		rows := stop()
		statuses(t, b, map[outbox.Status]int{outbox.Published: len(rows)})
		require.Equal(t, rowsByKey(rows), byKey(m.Messages(topic)))
		require.Zero(t, fourth.Status()["default"].OrderBreaks)
	})
}

// C-43: two that start at the same moment share evenly, also what the dead have
// left.
func TestMembers_C_43_TwoStartTogether(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		m := memory.New(memory.Config{})
		for range 2 {
			var both []*outbox.Processor
			for range 2 {
				both = append(both, processor(t, b, member(), lane(m)))
			}
			eventually(t, func() bool {
				return both[0].Status()["default"].Partitions == 4 && both[1].Status()["default"].Partitions == 4
			}, "each has half")
			shared(t, b, 4, 4)
			for _, p := range both {
				kill(t, p)
			}
		}
	})
}

// S2-12: three workers have the same part of 10,000 keys, give or take 5 % of
// all.
func TestMembers_S2_12_KeysAreSpread(t *testing.T) {
	db := openSQLite(t)
	const partitions, keys = 64, 10000
	require.NoError(t, outbox.Migrate(t.Context(), db.DB(), partitions))
	b := &outboxtest.Bench{Store: outbox.NewStore(db.DB(), db.Reader()), T: t, DB: db.DB()}
	for range 3 {
		processor(t, b, member(), lane(memory.New(memory.Config{})))
	}
	shared(t, b, 20, 22, 22)
	var found []struct {
		Partition int
		LockedBy  string
	}
	require.NoError(t, b.DB.NewRaw("SELECT partition, locked_by FROM outbox_partitions").Scan(t.Context(), &found))
	owner := map[int]string{}
	for _, f := range found {
		owner[f.Partition] = f.LockedBy
	}
	counts := map[string]float64{}
	for range keys {
		counts[owner[outbox.PartitionOf(outboxtest.Row("").ID, partitions)]]++
	}
	require.Len(t, counts, 3)
	for _, n := range counts {
		require.InDelta(t, 1.0/3, n/keys, 0.05)
	}
}

// S2-33, C-41: a worker that was taken for dead learns it from its next renewal,
// publishes nothing of what it had, and is given partitions again under its own
// name.
func TestMembers_S2_33_C_41_TakenForDead(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		m := memory.New(memory.Config{})
		p, log := logged(t, b, member(), lane(m))
		shared(t, b, 8)
		name := slices.Collect(maps.Keys(owners(t, b)))
		b.Exec("DELETE FROM outbox_workers")
		thief := outboxtest.Worker{}
		for len(thief.Leases) < outboxtest.Partitions { // a renewal may come in between
			b.Expire()
			thief = b.Worker("thief", outboxtest.Partitions, 1500*time.Millisecond)
		}
		b.Insert(outboxtest.Numbered("k", 20)...)
		require.Eventually(t, func() bool { return p.Status()["default"].Partitions == 0 }, time.Second, time.Millisecond)
		require.Eventually(t, func() bool {
			return log.count("leases had run out and others have taken the partitions") == 1
		}, time.Second, time.Millisecond)
		require.Empty(t, m.Messages(topic), "it doesn't go on as if they were its own")

		statuses(t, b, map[outbox.Status]int{outbox.Published: 20})
		require.Equal(t, name, slices.Collect(maps.Keys(owners(t, b))))
		require.Len(t, m.Messages(topic), 20)
		alive, err := b.Membership(t.Context(), "default")
		require.NoError(t, err)
		require.Equal(t, 1, alive.Workers)
	})
}

// C-44: a lease doesn't hang on a connection: two processes all of whose
// connections break, again and again, keep their partitions, and no key is ever
// in two hands.
func TestMembers_C_44_ConnectionsBreak(t *testing.T) {
	t.Parallel()
	dsn, err := url.Parse(os.Getenv("WAYBILL_POSTGRES"))
	require.NoError(t, err)
	admin := outboxtest.Open(t, openPostgres(t))
	var schema string
	require.NoError(t, admin.DB.NewRaw("SELECT current_schema()").Scan(t.Context(), &schema))
	query := dsn.Query()
	query.Set("application_name", schema)
	dsn.RawQuery = query.Encode()
	provider, err := postgres.Open(t.Context(), postgres.Config{DSN: dsn.String(), Schema: schema})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, provider.Close()) })
	b := &outboxtest.Bench{Store: outbox.NewStore(provider.DB(), provider.Reader()), T: t, DB: provider.DB()}

	m, in := memory.New(memory.Config{}), &sync.Map{}
	cfg := member()
	cfg.Lease = time.Minute
	stop := feed(t, admin)
	defer stop()
	for range 2 {
		processor(t, b, cfg, lane(exclusive{Broker: m, t: t, in: in}))
	}
	shared(t, admin, 4, 4)
	before := owners(t, admin)
	for range 10 {
		published := len(m.Messages(topic))
		var ended []bool
		require.NoError(t, admin.DB.NewRaw("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = ?", schema).Scan(t.Context(), &ended))
		eventually(t, func() bool { return len(m.Messages(topic)) > published+20 }, "they go on")
		require.Equal(t, before, owners(t, admin))
	}
	rows := stop()
	statuses(t, admin, map[outbox.Status]int{outbox.Published: len(rows)})
	require.Equal(t, rowsByKey(rows), byKey(m.Messages(topic)))
}
