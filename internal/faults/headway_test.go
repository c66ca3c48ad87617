package faults

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/netfault"
	"github.com/waybill-go/waybill/internal/verdict"
)

// O4: of two processes one reaches the database, and Kafka no more: refused, or without
// an answer. It says so, and leaves its partitions to the other; it has its share
// again once Kafka answers it.
func TestHealth_O4_CutOffFromKafkaOnly(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(*netfault.Relay){"refused": (*netfault.Relay).Cut, "silent": (*netfault.Relay).Stall} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kafka := environment(t, "WAYBILL_KAFKA")
			const accounts = 400 // of nearly all partitions: a trial of one without rows shows nothing
			w := newWorldOn(t, kafka, accounts, 1<<20)
			x, err := netfault.New(t.Context(), kafka)
			require.NoError(t, err)
			t.Cleanup(x.Close)
			quick := func(c *nodeConfig) { c.Outbox.Lease, c.Outbox.PublishTimeout = 10*time.Second, 3*time.Second }
			a, b := w.engine(quick, func(c *nodeConfig) { c.Detour = x.Address }), w.engine(quick)
			all := w.count("outbox_partitions")
			shared := func() bool { return w.held(a) >= all/2-1 && w.held(a)+w.held(b) == all }
			eventually(t, shared, "they share")
			writer := w.writer(accounts, 4, 20*time.Millisecond)
			w.publishes(200)

			cut(x)
			begin := time.Now()
			// Later it may have one, to try.
			eventually(t, func() bool { return w.held(b) >= all-1 && w.held(a) <= 1 }, "the other has all")
			t.Logf("%v later the other has all", time.Since(begin))
			require.NotEmpty(t, w.strings("SELECT trouble FROM outbox_members WHERE name LIKE $1 AND NOT healthy", owned(a)))
			last := w.strings("SELECT max(seq) FROM outbox_messages")[0]
			eventually(t, func() bool { return w.waiting("seq <= "+last) == 0 }, "what waited is published")
			t.Logf("%v later all that was there is published", time.Since(begin))
			w.publishes(200)

			x.Mend()
			mended := time.Now()
			eventually(t, shared, "they share again")
			t.Logf("%v after the network was mended they share again", time.Since(mended))
			writer.terminate()
			w.drain()
			r := w.check()
			require.Zero(t, r.Paid)
			a.terminate()
			b.terminate()
		})
	}
}

// Two writers are as fast as they can, leases are three seconds, and all sessions of all
// processes are terminated at once, again and again: each time rows are published again.
// Except in a long run, writers wait while 2,000 rows do, which is enough to have the engines
// busy all the time: on a busy machine it would be 100,000.
func TestDatabase_OverloadAndTerminatedSessions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 100)
	short := func(c *nodeConfig) { c.Outbox.Lease, c.Outbox.BatchSize = 3*time.Second, 500 }
	w.engine(short)
	w.engine(short)
	rounds, backlog := 3, 2000
	if long() {
		rounds, backlog = 20, 0
	}
	fast := func(c *nodeConfig) { c.Backlog = backlog }
	writers := []*process{w.writer(100, 4, 1, fast), w.writer(100, 4, 1, fast)}
	for range rounds {
		w.publishes(500)
		fault := verdict.Incident{Kind: "termination", From: time.Now()}
		killed := w.count(`(SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name LIKE 'node-%') AS killed`)
		require.Positive(t, killed)
		begin := time.Now()
		fault.Until = begin.Add(time.Second) // a settle may still be tried again
		w.note(fault)
		w.publishes(100)
		t.Logf("%d sessions ended; %v later 100 rows more are published, %d wait", killed, time.Since(begin), w.waiting())
	}
	for _, p := range writers {
		p.terminate()
	}
	w.drain()
	require.Zero(t, w.check().Paid)
}

// An engine is killed with -9 in the middle of a backlog, and the next one, too: of the
// rows that are published, hundreds come twice for a kill and not thousands, though each
// call takes 200 ms: what a lane has in hand has a bound.
func TestKill_InABacklog(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	w.save(400, 50) // in one unit of work
	for range 4 {
		// As by default. Calls take a while: what is being settled when its process dies is settled.
		w.died(w.node(func(c *nodeConfig) {
			c.Outbox.BatchSize, c.Outbox.Lease, c.Trap.Delay, c.Trap.KillFrom = 0, 0, 200*time.Millisecond, 1500
		}))
	}
	require.Positive(t, w.waiting(), "in the middle")
	w.engine(func(c *nodeConfig) { c.Outbox.BatchSize = 0 })
	w.drain()
	r := w.check()
	require.Equal(t, 20_000, r.Events)
	require.Positive(t, r.Taken)
	require.LessOrEqual(t, r.Worst, 1000, "rows of one kill")
	require.Zero(t, r.Abandoned+r.Paid)
}
