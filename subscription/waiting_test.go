package subscription_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/nats/embedded"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/subscription"
)

var errNotYet = errors.New("not yet")

// windowed is a broker that gives out no more than so many messages that are not
// acknowledged, as real ones do.
type windowed struct {
	broker.Broker
	most int
}

func (b *windowed) Consume(ctx context.Context, topic, group string) (broker.Consumer, error) {
	c, err := b.Broker.Consume(ctx, topic, group)
	return &windowedConsumer{Consumer: c, most: b.most, room: make(chan struct{}, 1)}, err
}

type windowedConsumer struct {
	broker.Consumer
	most int
	room chan struct{}
	mu   sync.Mutex
	out  int
}

func (c *windowedConsumer) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	for {
		c.mu.Lock()
		free := c.most - c.out
		c.mu.Unlock()
		if free > 0 {
			deliveries, err := c.Consumer.Receive(ctx, min(limit, free))
			c.mu.Lock()
			defer c.mu.Unlock()
			c.out += len(deliveries)
			return deliveries, err
		}
		select {
		case <-c.room:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (c *windowedConsumer) Ack(ctx context.Context, deliveries ...broker.Delivery) error {
	err := c.Consumer.Ack(ctx, deliveries...)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.out -= len(deliveries)
	}
	select {
	case c.room <- struct{}{}:
	default:
	}
	return err
}

// policies runs a test under both, on an empty database of each kind.
func policies(t *testing.T, test func(t *testing.T, w *world, p subscription.Policy)) {
	t.Helper()
	for _, p := range []subscription.Policy{subscription.Hold, subscription.Skip} {
		t.Run(p.String(), func(t *testing.T) {
			databases(t, func(t *testing.T, w *world) { test(t, w, p) })
		})
	}
}

// patient handles what has the note "wait" when it may. The key "o" waits longest.
func (w *world) patient(ready *atomic.Bool, d time.Duration) subscription.Stream {
	return w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
		if e.OrderID == "o" && !ready.Load() {
			return subscription.RetryAfter(errNotYet, 2*d)
		}
		if e.Note == "wait" && !ready.Load() {
			return subscription.RetryAfter(errNotYet, d)
		}
		return effect(ctx, e)
	}))
}

func waiting(from, to int) []broker.Message {
	var all []broker.Message
	for i := from; i < to; i++ {
		all = append(all, placed(fmt.Sprintf("w-%d", i), "wait"))
	}
	return all
}

// many is far more than a stream holds in memory, or a broker lends.
func many() int {
	if os.Getenv("WAYBILL_LONG") != "" {
		return 25_000
	}
	return 6_000
}

// dueNow ends all waits in the table.
func (w *world) dueNow() {
	w.exec("UPDATE dead_letters SET due_at = first_at WHERE status = 'waiting' AND taken_until IS NULL AND due_at <> first_at")
}

// B6: however many keys wait, others are handled, in bounded memory and with a broker
// that lends no more than 500 messages; and what waited goes on when its time has come.
func TestWaitingKeysStopNoOthers_B6(t *testing.T) {
	keys := many()
	w := newWorld(t, openPostgres(t))
	var ready atomic.Bool
	begin := time.Now()
	w.publish(waiting(0, keys)...)
	w.publish(placed("live", "1"), placed("live", "2"))
	r, stop := w.start(w.patient(&ready, time.Hour), &windowed{Broker: w.broker, most: 500})
	var most int64
	waittest.Until(t, func() bool {
		most = max(most, r.Status().InFlight)
		return len(w.effects("live")) == 2
	}, "the key behind them goes on")
	t.Logf("handled behind %d waiting keys after %v; at most %d messages in hand", keys, time.Since(begin).Round(time.Millisecond), most)
	require.LessOrEqual(t, most, int64(1024), "with those whose acknowledgement is under way")
	require.Empty(t, r.Status().Stalled)
	require.Zero(t, r.Status().Parked)

	w.publish(placed("live", "3"))
	w.until(func() bool { return len(w.effects("live")) == 3 }, "and at once, from then on")
	stop()
	counts, err := subscription.CountWaiting(t.Context(), w.provider.Reader())
	require.NoError(t, err)
	require.InDelta(t, keys, counts["shipping"], 256)
	counts, err = subscription.CountDeadLetters(t.Context(), w.provider.Reader())
	require.NoError(t, err)
	require.Empty(t, counts, "nobody has to look after them")
}

// B6: so it is on NATS, which stops lending at what nobody acknowledges.
func TestWaitingKeysStopNoOthersOnNATS_B6(t *testing.T) {
	keys := many()
	w := newWorld(t, openPostgres(t))
	b, err := embedded.Open(t.Context(), embedded.Config{Dir: t.TempDir(), SyncInterval: time.Minute})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close(context.Background())) })
	require.NoError(t, b.EnsureTopics(t.Context(), topic))
	for some := range slices.Chunk(append(waiting(0, keys), placed("live", "1"), placed("live", "2")), 1000) {
		require.NoError(t, b.Publish(t.Context(), some))
	}
	var ready atomic.Bool
	begin := time.Now()
	r, _ := w.start(w.patient(&ready, time.Hour), b)
	waittest.Until(t, func() bool { return len(w.effects("live")) == 2 }, "the key behind them goes on")
	t.Logf("handled behind %d waiting keys after %v", keys, time.Since(begin).Round(time.Millisecond))
	require.Empty(t, r.Status().Stalled)
	require.NoError(t, b.Publish(t.Context(), []broker.Message{placed("live", "3")}))
	w.until(func() bool { return len(w.effects("live")) == 3 }, "and at once, from then on")
}

// B6: messages of a waiting key that are put into the table have their effect there, once
// and in their order, whoever handles them, and what comes later follows them; under
// both policies.
func TestWaitingKeysKeepTheirOrder_B6(t *testing.T) {
	t.Parallel()
	policies(t, func(t *testing.T, w *world, policy subscription.Policy) {
		const keys, each = 300, 3
		var ready atomic.Bool
		tries := sync.Map{}
		s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
			n, _ := tries.LoadOrStore(e.OrderID+e.Note, new(atomic.Int64))
			switch n := n.(*atomic.Int64).Add(1); {
			case !ready.Load():
				return subscription.RetryAfter(errNotYet, time.Hour)
			case n%3 == 1:
				return subscription.RetryAfter(errNotYet, time.Millisecond)
			}
			return effect(ctx, e)
		}))
		s.OnParked = policy
		var all []broker.Message
		for n := range each {
			for key := range keys {
				all = append(all, placed(fmt.Sprintf("k-%d", key), fmt.Sprint(n)))
			}
		}
		w.publish(all...)
		r, stop := w.start(s, w.broker)
		w.until(func() bool { return r.Status().Postponed > 0 && r.Status().InFlight < 2*256 }, "many are put aside")
		stop()
		require.Zero(t, w.allEffects())

		ready.Store(true)
		one, stopOne := w.start(s, w.broker)
		other, stopOther := w.start(s, w.broker)
		waittest.ToZero(t, func() int {
			w.dueNow()
			return keys*each - w.allEffects()
		}, "all have their effect")
		w.until(w.acknowledged("shipping"), "and are acknowledged")
		stopOne()
		stopOther()
		for key := range keys {
			require.Equal(t, []string{"0", "1", "2"}, w.effects(fmt.Sprintf("k-%d", key)))
		}
		require.EqualValues(t, keys*each, one.Status().Handled+one.Status().Replayed+other.Status().Handled+other.Status().Replayed)
		require.Zero(t, w.count("SELECT count(*) FROM dead_letters WHERE status <> 'replayed'"))
		require.Equal(t, keys*each, w.inbox())
	})
}

// crowd makes so many keys wait that the one that waits already, for longer, goes into the
// table. One that came after them could find them there, and wait in memory.
func (w *world) crowd(r *subscription.Runner) {
	w.until(func() bool { return r.Status().Waiting > 0 }, "the first key waits")
	w.publish(waiting(0, 300)...)
}

// B6: a message keeps its attempts in the table, and is parked after the last, with the key
// held or not as the policy says.
func TestPostponedMessageKeepsItsAttempts_B6(t *testing.T) {
	t.Parallel()
	policies(t, func(t *testing.T, w *world, policy subscription.Policy) {
		s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
			switch e.Note {
			case "bad":
				return errBad
			case "wait":
				return subscription.RetryAfter(errNotYet, time.Minute)
			}
			return effect(ctx, e)
		}))
		s.MaxAttempts, s.Backoff, s.OnParked = 3, time.Hour, policy
		w.publish(placed("o", "bad"), placed("o", "next"))
		r, stop := w.start(s, w.broker)
		defer stop()
		w.crowd(r)
		w.until(func() bool { return w.statuses("o")["waiting"] == 1 && w.statuses("o")["held"] == 1 }, "it waits in the table, and the next behind it")
		require.Equal(t, 1, w.count("SELECT attempts FROM dead_letters WHERE partition_key = 'o' AND status = 'waiting'"))
		w.until(func() bool {
			w.exec("UPDATE dead_letters SET due_at = first_at WHERE partition_key = 'o' AND status = 'waiting' AND taken_until IS NULL")
			return w.statuses("o")["parked"] == 1
		}, "it is parked in the end")
		require.Equal(t, 3, w.count("SELECT attempts FROM dead_letters WHERE partition_key = 'o' AND status = 'parked'"))
		if policy == subscription.Skip {
			w.until(func() bool { return len(w.effects("o")) == 1 }, "what is behind it goes on")
			return
		}
		require.Equal(t, map[string]int{"parked": 1, "held": 1}, w.statuses("o"))
		require.Empty(t, w.effects("o"))
	})
}

// B6: a crash between the commit that puts a message aside and its acknowledgement: it comes
// again, is known, and has its effect once. What comes later of the key, to another
// member, stands behind it.
func TestPostponedMessageComesAgain_B6(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		var ready atomic.Bool
		s := w.patient(&ready, time.Hour)
		w.publish(placed("o", "wait"))
		deaf := &altered{Broker: w.broker, ack: func([]broker.Delivery) []broker.Delivery { return nil }}
		r, stop := w.start(s, deaf)
		w.crowd(r)
		w.until(func() bool { return r.Status().Postponed >= 128 && w.statuses("o")["waiting"] == 1 }, "it is put aside, and not acknowledged")
		stop()

		w.publish(placed("o", "next"))
		again, stop := w.start(s, w.broker)
		w.until(func() bool { return w.statuses("o")["held"] == 1 && again.Status().Duplicates >= r.Status().Postponed }, "the database knows it, and its key")
		require.Empty(t, w.effects("o"))
		ready.Store(true)
		w.until(func() bool { w.dueNow(); return len(w.effects("o")) == 2 }, "both take effect")
		stop()
		require.Equal(t, []string{"wait", "next"}, w.effects("o"))
	})
}

// B6: where the table has no room either, the subscription says what waits, since when and
// what helps, once; and goes on by itself.
func TestFullTableIsNotSilent_B6(t *testing.T) {
	w := newWorld(t, openSQLite(t))
	var ready atomic.Bool
	s := w.patient(&ready, time.Hour)
	s.WaitLimit = 50
	w.publish(waiting(0, 400)...)
	r, stop := w.start(s, w.broker)
	w.until(func() bool { return r.Status().Stalled != "" && len(w.logs.lines("no others can be taken")) == 1 }, "it says so")
	status := r.Status()
	require.Contains(t, status.Stalled, "Stream.WaitLimit")
	require.WithinDuration(t, time.Now(), status.StalledSince, time.Minute)
	require.EqualValues(t, 350, status.Waiting)
	require.Equal(t, 50, w.deadLetters())

	ready.Store(true)
	w.until(func() bool {
		w.dueNow()
		return r.Status().Stalled == ""
	}, "there is room again")
	stop()
	require.Len(t, w.logs.lines("no others can be taken"), 1, "the log tells once")
	require.Len(t, w.logs.lines("messages of waiting keys are few again"), 1)
}

// RetryAfter costs no attempt, also of a message whose attempts are counted before they
// are made.
func TestRetryAfterCostsNothingWhereAttemptsAreCountedFirst(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		var calls atomic.Int64
		s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
			if calls.Add(1) < 5 {
				return subscription.RetryAfter(errNotYet, time.Millisecond)
			}
			return effect(ctx, e)
		}))
		s.MaxAttempts = 1
		w.exec("INSERT INTO subscription_runs (subscription, run) VALUES ('shipping', 'died')")
		w.publish(placed("o", ""))
		_, stop := w.start(s, w.broker)
		w.until(w.acknowledged("shipping"), "it is handled")
		stop()
		require.Zero(t, w.deadLetters())
		require.Len(t, w.effects("o"), 1)
	})
}
