package relay_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/internal/relay/relaytest"
)

// In a bubble time passes only while everybody waits, so that these numbers are those of
// the rules, on any machine.

// poll is the longest time between two looks of an idle process.
const poll = 5 * time.Second

// arrivals are when messages came to a broker, by id, each for the first time.
type arrivals struct {
	mu sync.Mutex
	at map[string]time.Time
}

// on has a connection publish as it should, each call taking a while, and notes arrivals.
func (a *arrivals) on(c *connection, takes time.Duration) {
	c.through(func(ctx context.Context, messages []broker.Message) error {
		time.Sleep(takes) //nolint:forbidigo // in a bubble
		err := c.Broker.Publish(ctx, messages)
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, m := range messages {
			if _, again := a.at[m.ID]; err == nil && !again {
				a.at[m.ID] = time.Now()
			}
		}
		return err
	})
}

func (a *arrivals) all() []time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.SortedFunc(maps.Values(a.at), time.Time.Compare)
}

// S1-04: with a healthy broker no row is found by looking for rows: of a hundred commits
// each wakes who holds its partition, who reads that partition once. Polls find nothing, and
// no time passes.
func TestWake_S1_04_CommitsAreNotLookedFor(t *testing.T) {
	inWorld(t, func(w *world) {
		const commits = 100
		p := w.start()
		w.ready(map[*process]int{p: 8})
		w.insert(p, "first")
		w.delivered(time.Minute)
		steps := []relaytest.Step{relaytest.Poll, relaytest.Due, relaytest.First, relaytest.Fetch, relaytest.Look, relaytest.Claim, relaytest.Settle}
		before := map[relaytest.Step]int{}
		for _, step := range steps {
			before[step] = p.store.Calls(step)
		}
		begin := time.Now()
		for n := range commits {
			w.insert(p, fmt.Sprint("key-", n))
			w.delivered(time.Second)
		}
		asked := map[relaytest.Step]int{}
		for _, step := range steps {
			asked[step] = p.store.Calls(step) - before[step]
		}
		t.Logf("%v, statements: %v", time.Since(begin), asked)
		// One poll may be due in that second, and has partitions read that nothing was committed to.
		require.LessOrEqual(t, asked[relaytest.Poll], 1)
		require.LessOrEqual(t, asked[relaytest.Look], 8*asked[relaytest.Poll])
		delete(asked, relaytest.Poll)
		delete(asked, relaytest.Look)
		require.Equal(t, map[relaytest.Step]int{
			relaytest.Due: 0, relaytest.First: 0, relaytest.Fetch: 0, relaytest.Claim: commits, relaytest.Settle: commits,
		}, asked)
		require.LessOrEqual(t, time.Since(begin), commits*10*time.Millisecond, "the test looks every 10 ms")
	})
}

// S2-11: what a killed process had in hand goes to another one when its lease has ended,
// not before, and no later than a poll after it.
func TestKill_S2_11_TakenWithinAPollOfTheLeasesEnd(t *testing.T) {
	for _, idle := range []time.Duration{20 * time.Second, 47 * time.Second, 100 * time.Second} {
		inWorld(t, func(w *world) {
			a := w.start()
			w.ready(map[*process]int{a: 8})
			name := slices.Collect(maps.Keys(w.store.Members()))[0]
			got := arrivals{at: map[string]time.Time{}}
			b := w.start(func(p *process, _ *relay.Config) { got.on(p.broker, 0) })
			w.ready(map[*process]int{a: 4, b: 4})
			a.broker.through(func(ctx context.Context, _ []broker.Message) error {
				<-ctx.Done()
				return ctx.Err()
			})
			time.Sleep(idle) //nolint:forbidigo // in a bubble: both poll as seldom as they do
			ids := w.commit(a, 1, 40)
			w.until(poll, "each has its own", func() bool { return int64(len(got.all()))+int64(a.Status()[target].InFlight) == 40 })
			own := len(got.all())
			ends := w.leaseOf(name)
			w.vanish(a)
			w.delivered(time.Minute)
			at := got.all()
			t.Logf("%d taken, the first %v after the lease's end, the last %v", 40-own, at[own].Sub(ends), at[39].Sub(ends))
			require.Less(t, own, 40)
			require.False(t, at[own].Before(ends), "while the lease runs they are its own")
			require.LessOrEqual(t, at[39].Sub(ends), poll)
			w.inOrder(ids)
		})
	}
}

// leaseOf is until when a member's lease runs, if it isn't renewed.
func (w *world) leaseOf(name string) (ends time.Time) {
	w.Helper()
	lanes, _, err := w.store.Lanes(w.Context(), []string{target})
	require.NoError(w, err)
	polled, err := w.store.Poll(w.Context(), lanes)
	require.NoError(w, err)
	for _, m := range polled.Lanes[0].Members {
		if m.Name == name {
			ends = m.Until
		}
	}
	require.False(w, ends.IsZero())
	return ends
}

// S2-31: what a process leaves behind that stops is another one's within a poll, though
// leases last for ten minutes and nobody wakes it.
func TestStop_S2_31_OthersHaveItWithinAPoll(t *testing.T) {
	for _, idle := range []time.Duration{20 * time.Second, 47 * time.Second, 100 * time.Second} {
		inWorld(t, func(w *world) {
			lasting := func(_ *process, cfg *relay.Config) { cfg.Outbox.Lease = 10 * time.Minute }
			a, b := w.start(lasting), w.start(lasting)
			w.ready(map[*process]int{a: 4, b: 4})
			time.Sleep(idle) //nolint:forbidigo // in a bubble: both poll as seldom as they do
			got := arrivals{at: map[string]time.Time{}}
			got.on(b.broker, 0)
			require.NoError(t, a.Stop(w.Context()))
			stopped := time.Now()
			w.commit(nil, 1, 20)
			w.delivered(20 * time.Minute)
			at := got.all()
			t.Logf("the last %v after the stop", at[len(at)-1].Sub(stopped))
			require.Len(t, at, 20)
			require.LessOrEqual(t, at[len(at)-1].Sub(stopped), poll)
		})
	}
}

// A56: while a partner's broker is down, internal messages take exactly as long as before.
func TestLanes_A56_APartnersOutageCostsOthersNoTime(t *testing.T) {
	inWorld(t, func(w *world) {
		const takes = 20 * time.Millisecond
		partner := &connection{Broker: memory.New(memory.Config{})}
		p := w.start(func(_ *process, cfg *relay.Config) {
			cfg.Lanes = append(cfg.Lanes, relay.Lane{Target: "partner", Broker: partner, External: true})
		})
		w.ready(map[*process]int{p: 8})
		longest := func() (most time.Duration) {
			got := arrivals{at: map[string]time.Time{}}
			got.on(p.broker, takes)
			for n := range 100 {
				begin := time.Now()
				row := relaytest.Row(target, topic, fmt.Sprint("key-", n%10))
				theirs := relaytest.Row("partner", topic, fmt.Sprint("key-", n%10))
				p.Wake(w.store.Insert(row, theirs))
				w.until(time.Minute, "it is published", func() bool { return len(got.all()) == n+1 })
				most = max(most, got.all()[n].Sub(begin))
			}
			return most
		}
		before := longest()
		partner.down(true)
		during := longest()
		t.Logf("at most %v before, %v while the partner's broker is down", before, during)
		require.Equal(t, takes, before)
		require.Equal(t, before, during)
		w.until(time.Second, "only the partner's wait", func() bool { return len(w.store.Undelivered()) == 100 })
	})
}

// S3-19: each row is published once, and four calls at once, or four processes, are four
// times as fast as one.
func TestLoad_S3_19_FourAreFourTimesAsFast(t *testing.T) {
	lasted := func(processes, calls int) (took time.Duration) {
		inWorld(t, func(w *world) {
			shares := map[*process]int{}
			got := arrivals{at: map[string]time.Time{}}
			for range processes {
				p := w.start(func(p *process, cfg *relay.Config) {
					cfg.Outbox.Calls, cfg.Outbox.BatchSize = calls, 1
					got.on(p.broker, 50*time.Millisecond)
				})
				shares[p] = 8 / processes
			}
			w.ready(shares)
			begin := time.Now()
			for n := range 400 {
				row := relaytest.Row(target, topic, fmt.Sprint("key-", n))
				poked := w.store.Insert(row)
				for p := range shares {
					p.Wake(poked)
				}
			}
			w.delivered(time.Minute)
			at := got.all()
			took = at[len(at)-1].Sub(begin)
			require.Len(t, w.broker.Messages(topic), 400, "each once")
			require.Len(t, at, 400)
		})
		return took
	}
	one := lasted(1, 1)
	calls, processes := lasted(1, 4), lasted(4, 1)
	t.Logf("one call: %v, four: %v, four processes with one each: %v", one, calls, processes)
	require.GreaterOrEqual(t, one.Seconds()/calls.Seconds(), 3.9)
	require.GreaterOrEqual(t, one.Seconds()/processes.Seconds(), 3.5, "keys aren't spread evenly over partitions")
}
