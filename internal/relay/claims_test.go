package relay_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/internal/relay/relaytest"
	"github.com/waybill-go/waybill/outbox"
)

// Two claims of a lane are out at a time, and never more; nothing is looked at beside
// them, so that between them there is an instant in which others get the member's row.
func TestClaims_TwoAtATime(t *testing.T) {
	inWorld(t, func(w *world) {
		var out, most, beside atomic.Int32
		p := w.start(func(_ *process, cfg *relay.Config) { cfg.Outbox.BatchSize = 5 })
		w.ready(map[*process]int{p: 8})
		p.store.Before(func(step relaytest.Step) {
			switch step {
			case relaytest.Claim:
				n := out.Add(1)
				most.Store(max(most.Load(), n))
				time.Sleep(50 * time.Millisecond) //nolint:forbidigo // in a bubble: as long as a slow database takes
				out.Add(-1)
			case relaytest.Look, relaytest.Fetch, relaytest.Take, relaytest.Release:
				beside.Add(out.Load())
			default:
			}
		})
		ids := w.commit(p, 5, 20)
		w.delivered(time.Minute)
		w.inOrder(ids)
		require.Len(t, w.broker.Messages(topic), 100)
		require.EqualValues(t, 2, most.Load())
		require.Zero(t, beside.Load())
	})
}

// One of two isn't answered: the other one's rows go their way, and nothing is lost, doubled or left behind.
func TestClaims_OneOfTwoFails(t *testing.T) {
	for name, fault := range unanswered {
		for _, which := range []int{0, 1, 2} { // the look that may claim, and finds too much, is the first
			t.Run(fmt.Sprint(name, " ", which), func(t *testing.T) {
				inWorld(t, func(w *world) {
					p := w.start(func(_ *process, cfg *relay.Config) { cfg.Outbox.BatchSize = 5 })
					w.ready(map[*process]int{p: 8})
					faults := make([]relaytest.Fault, which+1)
					faults[which] = fault
					p.store.Fault(relaytest.Claim, faults...)
					ids := w.commit(p, 5, 4)
					w.delivered(time.Minute)
					w.inOrder(ids)
					require.Len(t, w.broker.Messages(topic), 20)
					require.NoError(t, p.Stop(w.Context()))
					time.Sleep(2 * time.Second) //nolint:forbidigo // in a bubble
					require.Zero(t, w.store.Tokens())
				})
			})
		}
	}
}

// A look that claims, and isn't answered, is forgotten as a claim is: what it found is
// published once, whether its token is there or not.
func TestFresh_WhatIsNotAnswered(t *testing.T) {
	for name, fault := range unanswered {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				p := w.start()
				w.ready(map[*process]int{p: 8})
				w.insert(p, "first")
				w.delivered(time.Minute)
				looks := p.store.Calls(relaytest.Look)
				p.store.Before(func(step relaytest.Step) {
					if step == relaytest.Claim {
						require.Equal(w, looks, p.store.Calls(relaytest.Look), "nothing has looked before")
						p.store.Before(nil)
					}
				})
				p.store.Fault(relaytest.Claim, fault)
				w.insert(p, "a", "b", "a")
				w.delivered(time.Minute)
				require.Len(t, w.ids("a"), 2)
				require.Len(t, w.broker.Messages(topic), 4)
				require.NoError(t, p.Stop(w.Context()))
				time.Sleep(2 * time.Second) //nolint:forbidigo // in a bubble
				require.Zero(t, w.store.Tokens())
			})
		})
	}
}

// What a look that claims may read is more than it does: the rest is for others at once.
func TestFresh_GivesBackWhatItDoesNotNeed(t *testing.T) {
	inWorld(t, func(w *world) {
		gate := relay.NewGate()
		shared := func(_ *process, cfg *relay.Config) { cfg.Gate = gate }
		other := &world{T: w.T, store: relaytest.New(8), broker: memory.New(memory.Config{})}
		a, b := w.start(shared), other.start(shared)
		w.ready(map[*process]int{a: 8})
		other.ready(map[*process]int{b: 8})
		release := w.broker.Stall()
		looks := a.store.Calls(relaytest.Look)
		for part, n := 0, 0; part < 8; n++ {
			if key := fmt.Sprint("key-", n); outbox.PartitionOf(key, 8) == part {
				part++
				w.insert(a, key)
				w.until(time.Second, "called", func() bool { return len(w.broker.Calls()) == part })
			}
		}
		require.Equal(w, looks, a.store.Calls(relaytest.Look))
		other.insert(b, "b")
		other.delivered(time.Second)
		release()
		w.delivered(time.Second)
	})
}

// Where claims fail for long and renewals don't, what is to be forgotten has a bound: the
// lane joins anew, and goes on when they are answered.
func TestClaims_WhatIsForgottenHasABound(t *testing.T) {
	inWorld(t, func(w *world) {
		p := w.start()
		w.ready(map[*process]int{p: 8})
		joins := p.store.Calls(relaytest.Join)
		p.store.Always(relaytest.Claim, relaytest.Refused)
		w.insert(p, "a")
		w.until(time.Hour, "joined anew", func() bool { return p.store.Calls(relaytest.Join) > joins })
		require.GreaterOrEqual(t, p.store.Calls(relaytest.Claim), 1000)
		require.Less(t, p.store.Calls(relaytest.Claim), 1010)
		p.store.Always(relaytest.Claim, relaytest.Fault{})
		w.delivered(time.Minute)
		require.Len(t, w.ids("a"), 1)
	})
}

// A panic in one of two claims is the lane's: it says so and starts again, and the rows
// of both go on.
func TestClaims_OneOfTwoPanics(t *testing.T) {
	for _, which := range []int32{1, 2} {
		inWorld(t, func(w *world) {
			var claims atomic.Int32
			p := w.start(func(_ *process, cfg *relay.Config) { cfg.Outbox.BatchSize = 5 })
			w.ready(map[*process]int{p: 8})
			p.store.Before(func(step relaytest.Step) {
				if step == relaytest.Claim && claims.Add(1) == which {
					panic("boom")
				}
			})
			ids := w.commit(p, 5, 4)
			w.delivered(time.Minute)
			w.inOrder(ids)
			require.Len(t, w.broker.Messages(topic), 20)
			require.Equal(t, 1, w.logs.count("a lane crashed and starts again"))
		})
	}
}
