package relay_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/internal/relay/relaytest"
	"github.com/waybill-go/waybill/outbox"
)

// watch has a process publish so that begin and end of each call are seen.
func (w *world) watch(p *process, takes time.Duration, seen func(keys map[string]int, begins bool)) {
	p.broker.through(func(ctx context.Context, messages []broker.Message) error {
		keys := map[string]int{}
		for _, m := range messages {
			keys[m.Key]++
		}
		seen(keys, true)
		defer seen(keys, false)
		timer := time.NewTimer(takes)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		return w.broker.Publish(ctx, messages)
	})
}

// No two calls that are not settled hold rows of one key; and calls go side by side.
func TestCall_AKeyHasAtMostOneUnsettledCall(t *testing.T) {
	inWorld(t, func(w *world) {
		p := w.start(func(_ *process, cfg *relay.Config) { cfg.Outbox.BatchSize = 5 })
		p.store.Always(relaytest.Settle, relaytest.Slow(30*time.Millisecond))
		var mu sync.Mutex
		out, calls, most := map[string]int{}, 0, 0
		w.watch(p, 100*time.Millisecond, func(keys map[string]int, begins bool) {
			mu.Lock()
			defer mu.Unlock()
			for key := range keys {
				if begins {
					out[key]++
					require.Equal(w, 1, out[key], key)
				} else {
					out[key]--
				}
			}
			if calls++; !begins {
				calls -= 2
			}
			most = max(most, calls)
		})
		ids := w.commit(p, 20, 12)
		w.delivered(time.Minute)
		w.inOrder(ids)
		require.Greater(t, most, 2)
		require.LessOrEqual(t, most, 8)
	})
}

// O8: without prefix a call of the broker holds one row of a key; the next wave only
// begins if there is time for it, and what isn't sent goes back unpaid.
func TestCall_O8_WavesOnlyBeginWhileThereIsTime(t *testing.T) {
	inWorld(t, func(w *world) {
		p := w.start(func(p *process, cfg *relay.Config) {
			p.broker.noPrefix = true
			cfg.Outbox.PublishTimeout = 2 * time.Second
		})
		w.watch(p, 20*time.Millisecond, func(keys map[string]int, _ bool) {
			for key, n := range keys {
				require.Equal(w, 1, n, key)
			}
		})
		ids := w.commit(p, 400, 1)
		begin := time.Now()
		w.delivered(30 * time.Second)
		require.Less(t, time.Since(begin), 12*time.Second)
		require.Len(t, w.broker.Messages(topic), 400, "nothing was cut off in the middle")
		w.inOrder(ids)
		require.Zero(t, p.Status()[target].Retries)
		require.Equal(t, "closed", p.Status()[target].Breaker)
	})
}

// What fails for itself pays and waits, and its key with it; others go on.
func TestCall_ARowThatIsRefusedWaitsAndItsKeyWithIt(t *testing.T) {
	inWorld(t, func(w *world) {
		p := w.start()
		var refuse atomic.Bool
		refuse.Store(true)
		w.broker.FailWhere(func(m broker.Message) error {
			if m.Key == "key-0" && refuse.Load() {
				return broker.Scoped(broker.Transient, broker.ScopeRow, errors.New("not now"))
			}
			return nil
		})
		ids := w.commit(p, 3, 3)
		w.until(10*time.Second, "others are there", func() bool { return len(w.broker.Messages(topic)) == 6 })
		w.until(time.Second, "its failure is written", func() bool { _, attempts, _ := w.store.Queued(1); return attempts == 1 })
		_, behind, _ := w.store.Queued(4)
		require.Zero(t, behind)
		refuse.Store(false)
		w.delivered(62 * time.Second)
		w.inOrder(ids)
	})
}

// A row of which no message can be made stops none that is before it in its key and claim: it
// is abandoned in its turn, and the key goes on.
func TestCall_ARowThatCannotBeSentStopsNoneBeforeIt(t *testing.T) {
	for name, start := range map[string]func(w *world) *process{
		"prefix": func(w *world) *process { return w.start() },
		"waves": func(w *world) *process {
			return w.start(func(p *process, _ *relay.Config) { p.broker.noPrefix = true })
		},
		"transactions": func(w *world) *process { p, _ := w.exactly(); return p },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				p := start(w)
				w.ready(map[*process]int{p: 8})
				first, bad, last := relaytest.Row(target, topic, "a"), relaytest.Row(target, topic, "a"), relaytest.Row(target, topic, "a")
				bad.CloudEvent = "no JSON"
				p.Wake(w.store.Insert(first, bad, last))
				w.delivered(10 * time.Second)
				require.Equal(t, []string{first.MessageID, last.MessageID}, w.ids("a"))
				require.Len(t, w.store.Abandoned(), 1)
			})
		})
	}
}

func TestCall_ARowIsAbandonedAndTheNextGoesOn(t *testing.T) {
	for name, hold := range map[string]outbox.OnAbandoned{"skip": outbox.Skip, "hold": outbox.Hold} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				p := w.start(func(_ *process, cfg *relay.Config) { cfg.Outbox.OnAbandoned = hold })
				bad := relaytest.Row(target, topic, "a")
				w.broker.FailWhere(func(m broker.Message) error {
					if m.ID == bad.MessageID {
						return broker.Scoped(broker.Permanent, broker.ScopeRow, errors.New("too large"))
					}
					return nil
				})
				p.Wake(w.store.Insert(bad, relaytest.Row(target, topic, "a"), relaytest.Row(target, topic, "b")))
				if hold == outbox.Hold {
					w.until(time.Second, "b is there, a is held", func() bool { return len(w.store.Undelivered()) == 2 && w.store.Tokens() == 0 })
					require.NoError(t, w.store.Skip(1))
				}
				w.delivered(10 * time.Second)
				require.Len(t, w.ids("a"), 1)
				require.Equal(t, 1, w.logs.count(`msg="a row was abandoned"`))
			})
		})
	}
}

// A panic of an adapter counts as a loss of what it was called with; the row that it
// comes from ends alone, and takes no other along.
func TestCall_APanicOfTheAdapterIsALoss(t *testing.T) {
	for name, crash := range map[string]func(){"panic": func() { panic("adapter") }, "its goroutine ends": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				p := w.start()
				p.broker.through(func(ctx context.Context, messages []broker.Message) error {
					for _, m := range messages {
						if m.Key == "key-3" {
							crash()
						}
					}
					return w.broker.Publish(ctx, messages)
				})
				ids := w.commit(p, 1, 20)
				w.delivered(10 * time.Minute)
				abandoned := w.store.Abandoned()
				require.Len(t, abandoned, 1)
				require.Equal(t, "crash", abandoned[4].Class)
				delete(ids, "key-3")
				w.inOrder(ids)
				require.Equal(t, int64(5), p.Status()[target].Crashes)
			})
		})
	}
}

// O7: the gate is free while another database's settle is tried again.
func TestQuarantine_O7_AnAbsentDatabaseHoldsUpNobody(t *testing.T) {
	inWorld(t, func(w *world) {
		gate := relay.NewGate()
		shared := func(_ *process, cfg *relay.Config) { cfg.Gate = gate }
		other := &world{T: w.T, store: relaytest.New(8), broker: w.broker}
		a, b := w.start(shared), other.start(shared)
		w.ready(map[*process]int{a: 8, b: 8})

		poison := w.lose(2)
		a.store.Always(relaytest.Settle, relaytest.Refused)
		a.Hint()
		w.until(time.Minute, "its call has returned", func() bool { return len(w.ids(poison)) == 1 })
		other.insert(b, "b")
		other.delivered(time.Second)
		a.store.Always(relaytest.Settle, relaytest.Fault{})
		w.delivered(10 * time.Second)
	})
}

// lose commits a row that was lost so many times, and returns its key.
func (w *world) lose(times int) string {
	ids, _, err := w.store.Lanes(w.Context(), []string{target})
	require.NoError(w, err)
	tx := w.store.Begin()
	key := "lost"
	seq := tx.Insert(relaytest.Row(target, topic, key))[0]
	tx.Commit()
	row, _, _ := w.store.Queued(seq)
	for n := range times {
		members, err := w.store.Join(w.Context(), fmt.Sprint("lost-", n), []relay.Joining{{Lane: ids[0], Target: target}}, time.Second)
		require.NoError(w, err)
		_, err = w.store.Claim(w.Context(), relay.ClaimRequest{Member: members[0], Lane: ids[0], N: 1, Rows: []relay.RowRef{{Part: row.Part, Seq: seq, Key: row.Key}}})
		require.NoError(w, err)
		require.NoError(w, w.store.Leave(w.Context(), members))
	}
	return key
}

// While a row that may kill is out, nothing else of the process is.
func TestQuarantine_ItsRowIsCalledForAlone(t *testing.T) {
	inWorld(t, func(w *world) {
		gate := relay.NewGate()
		shared := func(_ *process, cfg *relay.Config) { cfg.Gate = gate }
		other := &world{T: w.T, store: relaytest.New(8), broker: memory.New(memory.Config{})}
		lost := w.lose(2)
		var out, inside, alone atomic.Int64
		seen := func(keys map[string]int, begins bool) {
			step := int64(-1)
			if begins {
				step = 1
			}
			n := out.Add(step)
			if keys[lost] > 0 {
				inside.Add(step)
				alone.Add(max(step, 0))
			}
			require.True(w, inside.Load() == 0 || n == 1, "%d calls beside it", n-1)
		}
		a := w.start(shared, func(p *process, _ *relay.Config) { w.watch(p, 50*time.Millisecond, seen) })
		b := other.start(shared, func(p *process, _ *relay.Config) { other.watch(p, 50*time.Millisecond, seen) })
		for range 20 {
			w.commit(a, 1, 10)
			other.commit(b, 1, 10)
			time.Sleep(20 * time.Millisecond) //nolint:forbidigo // in a bubble
		}
		w.delivered(time.Minute)
		other.delivered(time.Minute)
		require.Equal(t, int64(1), alone.Load())
	})
}

// T2: the lane's breaker waits at most 8 s, give or take a quarter, however long an outage is.
func TestBreaker_TriesAgainEveryEightSecondsAtMost(t *testing.T) {
	inWorld(t, func(w *world) {
		p := w.start()
		var mu sync.Mutex
		var last time.Time
		longest := time.Duration(0)
		p.broker.through(func(context.Context, []broker.Message) error {
			mu.Lock()
			defer mu.Unlock()
			if !last.IsZero() {
				longest = max(longest, time.Since(last))
			}
			last = time.Now()
			return errDown
		})
		w.insert(p, "a", "b")
		time.Sleep(10 * time.Minute) //nolint:forbidigo // in a bubble
		mu.Lock()
		defer mu.Unlock()
		require.Greater(t, longest, 6*time.Second)
		require.LessOrEqual(t, longest, 10200*time.Millisecond)
		p.broker.down(false)
		w.delivered(11 * time.Second)
	})
}

// A topic that is away alone costs the others nothing.
func TestTopic_OneThatIsAwayHoldsUpNoOther(t *testing.T) {
	inWorld(t, func(w *world) {
		p := w.start()
		var away atomic.Bool
		away.Store(true)
		w.broker.FailWhere(func(m broker.Message) error {
			if m.Topic == "dead" && away.Load() {
				return broker.Scoped(broker.Transient, broker.ScopeTopic, errors.New("no leader"))
			}
			return nil
		})
		for n := range 300 {
			p.Wake(w.store.Insert(relaytest.Row(target, "dead", fmt.Sprint("d", n))))
		}
		w.insert(p, "a")
		w.until(10*time.Second, "the live one is there", func() bool { return len(w.ids("a")) == 1 })
		w.until(10*time.Second, "the dead one is shown", func() bool { s := p.Status()[target]; return len(s.OpenTopics) == 1 && s.OpenTopics[0] == "dead" })
		require.Equal(t, "closed", p.Status()[target].Breaker)
		for range 10 {
			begin := time.Now()
			want := len(w.ids("a")) + 1
			w.insert(p, "a")
			w.until(time.Second, "at once", func() bool { return len(w.ids("a")) >= want })
			require.Less(t, time.Since(begin), 100*time.Millisecond)
		}
		away.Store(false)
		w.delivered(15 * time.Second)
		require.Len(t, w.broker.Messages("dead"), 300)
		require.Zero(t, p.Status()[target].Retries)
	})
}

// Headers of a message: its row's, the promise, and whether its event is private.
// Conformance: S0-20.
func TestMessage_Headers(t *testing.T) {
	inWorld(t, func(w *world) {
		p := w.start(func(_ *process, cfg *relay.Config) { cfg.Private = []string{"Test.Happened.v1"} })
		w.ready(map[*process]int{p: 8})
		time.Sleep(30 * time.Second) //nolint:forbidigo // in a bubble: a promise was made and is durable
		row := relaytest.Row(target, topic, "a")
		row.CorrelationID, row.CloudEvent = "c", `{"source":"s"}`
		p.Wake(w.store.Insert(row))
		w.delivered(time.Second)
		m := w.broker.Messages(topic)[0]
		require.Equal(t, row.MessageID, m.ID)
		require.Equal(t, row.MessageID, m.Headers["id"])
		require.Equal(t, "Test.Happened.v1", m.Headers["type"])
		require.Equal(t, "c", m.Headers["correlation-id"])
		require.Equal(t, "s", m.Headers["ce-source"])
		require.True(t, outbox.IsPrivate(m.Headers))
		promise, ok := outbox.PromiseOf(m.Headers)
		require.True(t, ok)
		require.False(t, promise.Settled.IsZero())
	})
}
