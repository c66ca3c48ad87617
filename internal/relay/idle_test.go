package relay_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/internal/relay/relaytest"
	"github.com/waybill-go/waybill/outbox"
)

// F-51: an idle process asks its database one thing per interval, whatever its lanes; and
// what nobody poked for is found by it (S2-27). S2-46: memberships are renewed when a
// third of the lease has passed, and not at every interval.
func TestProcessor_F51_S2_46_OneQueryPerIntervalWhenIdle(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		const interval = 10 * time.Millisecond
		store, m := counted(b), memory.New(memory.Config{})
		cfg := quick()
		cfg.PollInterval, cfg.MaxPollInterval, cfg.Lease, cfg.Retention.Every = interval, interval, time.Hour, -1
		p := start(t, relay.Config{Store: store, Lanes: []relay.Lane{to(m), {Target: "partner", Broker: m, External: true}}, Outbox: cfg})
		eventually(t, func() bool {
			s := p.Status()
			return s[target].Partitions == outboxdbtest.Partitions && s["partner"].Partitions == outboxdbtest.Partitions
		}, "it has all")
		others := func() (n int) {
			store.take()
			polls := 0
			for begin := time.Now(); polls < 30; <-time.After(time.Millisecond) {
				steps, all := store.take()
				polls += steps["poll"]
				n += all - steps["poll"]
				require.LessOrEqual(t, polls, int(time.Since(begin)/interval)+2)
			}
			return n
		}
		eventually(t, func() bool { return others() == 0 }, "nothing else, once it has looked")
		b.Insert("a")
		statuses(t, b, map[outbox.Status]int{outbox.Published: 1})
	})
}

// S2-27: within two intervals, that is.
func TestPoll_S2_27_FindsWhatNobodyPokedFor(t *testing.T) {
	inWorld(t, func(w *world) {
		w.start()
		w.until(time.Minute, "idle", func() bool { return w.store.Owned(target) != nil && len(w.store.Members()) == 1 })
		w.insert(nil, "a")
		w.delivered(6 * time.Second)
	})
}

// S2-27: also what had its seq before the last poll and was committed after it, though
// something else has the lane see meanwhile that nothing below can appear any more.
func TestPoll_S2_27_FindsWhatCommitsBehindAPoll(t *testing.T) {
	inWorld(t, func(w *world) {
		p := w.start()
		w.ready(map[*process]int{p: 8})
		loud, quiet := w.store.Begin(), w.store.Begin()
		loud.Insert(relaytest.Row(target, topic, "a"))
		quiet.Insert(relaytest.Row(target, topic, "b"))
		polls := p.store.Calls(relaytest.Poll)
		w.until(time.Minute, "polled", func() bool { return p.store.Calls(relaytest.Poll) >= polls+2 })
		time.Sleep(2 * time.Second) //nolint:forbidigo // in a bubble: the horizon is asked for once a second
		quiet.Commit()
		p.Wake(loud.Commit())
		w.until(time.Second, "one is published", func() bool { return len(w.ids("a")) == 1 })
		w.delivered(6 * time.Second)
		require.Len(t, w.ids("b"), 1)
	})
}

// S2-46: while nothing happens a process asks its database one thing now and then, and
// renews six times a minute.
func TestPoll_S2_46_AnIdleProcessAsksLittle(t *testing.T) {
	inWorld(t, func(w *world) {
		p := w.start()
		w.commit(p, 5, 5)
		w.delivered(time.Minute)
		time.Sleep(time.Minute) //nolint:forbidigo // in a bubble
		steps := map[relaytest.Step]int{
			relaytest.Poll: 13, relaytest.Renew: 7, relaytest.Look: 2, relaytest.Horizon: 2, relaytest.Due: 0, relaytest.Fetch: 0, relaytest.First: 0,
			relaytest.Claim: 0, relaytest.Settle: 0, relaytest.Take: 0, relaytest.Reap: 0,
		}
		before := map[relaytest.Step]int{}
		for step := range steps {
			before[step] = p.store.Calls(step)
		}
		time.Sleep(time.Minute) //nolint:forbidigo // in a bubble
		for step, most := range steps {
			require.LessOrEqual(t, p.store.Calls(step)-before[step], most, string(step))
		}
	})
}

// S1-18: whoever commits never waits for the relay, however many wake-ups are not
// answered.
func TestProcessor_S1_18_WakingNeverWaits(t *testing.T) {
	inWorld(t, func(w *world) {
		p := w.start(func(_ *process, cfg *relay.Config) { cfg.Outbox.Calls = 1 })
		w.ready(map[*process]int{p: 8})
		release := w.broker.Stall()
		defer release()
		w.insert(p, "a")
		w.until(time.Second, "its hands are full", func() bool { return p.Status()[target].InFlight == 1 })
		begin := time.Now()
		for i := range 100_000 {
			require.Empty(t, p.Wake([]outbox.Poke{{Target: target, Partition: i % 8}}))
			p.Hint()
		}
		require.Zero(t, time.Since(begin)) // in a bubble: nobody has waited
	})
}
