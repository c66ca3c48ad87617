package subscription_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/subscription"
)

// A78, C-74: strict order of a key, while other keys go on.
func TestFailingMessageHoldsItsKeyAndNothingElse(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		const keys, rounds = 40, 5
		var healed atomic.Bool
		s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
			// More keys fail than there are lanes.
			if !healed.Load() && e.Note == "1" && len(e.OrderID) == len("key-10") && e.OrderID < "key-30" {
				return errors.New("not yet")
			}
			return effect(ctx, e)
		}))
		s.Lanes = 4
		var want []string
		for round := range rounds {
			want = append(want, fmt.Sprint(round))
			for key := range keys {
				w.publish(placed(fmt.Sprintf("key-%d", key), fmt.Sprint(round)))
			}
		}
		r, stop := w.start(s, w.broker)
		w.until(func() bool { return w.allEffects() == 20*rounds+20 }, "all but the failing keys are done")
		w.until(func() bool { return r.Status().Retries > 50 }, "the failing ones are tried again")
		for key := 10; key < 30; key++ {
			require.Equal(t, []string{"0"}, w.effects(fmt.Sprintf("key-%d", key)))
		}
		require.Contains(t, r.Status().LastError, "not yet")

		healed.Store(true)
		w.until(w.acknowledged("shipping"), "they succeed")
		stop()
		for key := range keys {
			require.Equal(t, want, w.effects(fmt.Sprintf("key-%d", key)))
		}
	})
}

// The messages behind a failing one are far more than all lanes hold otherwise.
func TestFollowersOfAFailingMessageTakeNoRoom(t *testing.T) {
	const followers = 300 // more than a stream has in hand
	w := newWorld(t, openSQLite(t))
	var healed atomic.Bool
	s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
		if e.OrderID == "bad" && !healed.Load() {
			return errors.New("not yet")
		}
		return effect(ctx, e)
	}))
	s.Lanes = 2
	s.Backoff = 50 * time.Millisecond
	var sent []broker.Message
	for i := range followers {
		sent = append(sent, placed("bad", fmt.Sprint(i)))
	}
	sent = append(sent, placed("good", ""))
	w.publish(sent...)
	r, stop := w.start(s, w.broker)
	w.until(func() bool { return len(w.effects("good")) == 1 }, "the key behind them goes on")
	w.until(func() bool { return int(r.Status().InFlight)+w.deadLetters() == followers }, "they are kept, here or in the table")
	healed.Store(true)
	w.until(func() bool { return len(w.effects("bad")) == followers }, "they succeed")
	w.until(w.acknowledged("shipping"), "and are acknowledged")
	stop()
	notes := w.effects("bad")
	require.Len(t, notes, followers)
	for i, note := range notes {
		require.Equal(t, fmt.Sprint(i), note)
	}
}

func TestLanesBoundConcurrencyAndAKeyHasOne(t *testing.T) {
	w := newWorld(t, openSQLite(t))
	var mu sync.Mutex
	now, most := map[string]int{}, 0
	all := 0
	s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
		mu.Lock()
		now[e.OrderID]++
		all++
		alone := now[e.OrderID] == 1
		most = max(most, all)
		mu.Unlock()
		defer func() {
			mu.Lock()
			defer mu.Unlock()
			now[e.OrderID]--
			all--
		}()
		if !alone {
			return subscription.Park(errors.New("two of one key at a time"))
		}
		return effect(ctx, e)
	}))
	s.Lanes = 3
	for i := range 300 {
		w.publish(placed(fmt.Sprintf("key-%d", i%10), ""))
	}
	_, stop := w.start(s, w.broker)
	w.until(w.acknowledged("shipping"), "all are acknowledged")
	stop()
	require.Zero(t, w.deadLetters())
	require.LessOrEqual(t, most, 3)
	require.Greater(t, most, 1)
}

// While a message of a key is handled the next one of that key waits, though a lane is free: that
// one begins what is ready in the order in which it came, so it would have begun the second first.
func TestTheNextOfAKeyWaitsThoughALaneIsFree(t *testing.T) {
	w := newWorld(t, openSQLite(t))
	begun, release := make(chan string, 10), make(chan struct{})
	goOn := sync.OnceFunc(func() { close(release) })
	s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
		begun <- e.Note
		if e.Note == "first" {
			<-release
		}
		return effect(ctx, e)
	}))
	s.Lanes = 2
	r, stop := w.start(s, w.broker)
	t.Cleanup(goOn) // before the stop
	w.publish(placed("key", "first"))
	require.Equal(t, "first", <-begun)
	w.publish(placed("key", "second"))
	w.until(func() bool { return r.Status().InFlight == 2 || len(begun) > 0 }, "the second is here")
	w.publish(placed("other", "third"))
	require.Equal(t, "third", <-begun)
	require.Empty(t, begun)
	goOn()
	require.Equal(t, "second", <-begun)
	w.until(w.acknowledged("shipping"), "all are acknowledged")
	stop()
	require.Equal(t, []string{"first", "second"}, w.effects("key"))
}

// A lane that is behind doesn't keep others from acknowledging.
func TestSlowHandlerDelaysNobodyElse(t *testing.T) {
	w := newWorld(t, openSQLite(t))
	release := make(chan struct{})
	s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
		if e.OrderID == "o-0" {
			<-release
		}
		return effect(ctx, e)
	}))
	s.Lanes = 2
	w.publish(orders(400)...)
	_, stop := w.start(s, w.broker)
	w.until(func() bool { return w.broker.Unacknowledged(topic, "shipping") == 1 }, "the others are acknowledged")
	close(release)
	w.until(w.acknowledged("shipping"), "the slow one too")
	stop()
}

// A foreign publisher may send no key: such messages have no order, and one of
// them that fails holds nobody.
func TestMessagesWithoutAKey(t *testing.T) {
	w := newWorld(t, openSQLite(t))
	var healed atomic.Bool
	s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
		if e.OrderID == "o-0" && !healed.Load() {
			return errors.New("not yet")
		}
		return effect(ctx, e)
	}))
	w.publish(orders(20)...)
	_, stop := w.start(s, &altered{Broker: w.broker, receive: func(d broker.Delivery) broker.Delivery {
		d.Key = ""
		return d
	}})
	w.until(func() bool { return w.broker.Unacknowledged(topic, "shipping") == 1 }, "the others go on")
	healed.Store(true)
	w.until(w.acknowledged("shipping"), "it succeeds")
	stop()
	require.Equal(t, 20, w.allEffects())
}

// C-55, F-75, C-34
func TestTwoSubscriptionsEachGetAll(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		one, two := w.stream(), w.stream()
		one.Name, two.Name = "one", "two"
		w.publish(orders(30)...)
		_, stopOne := w.start(one, w.broker)
		_, stopTwo := w.start(two, w.broker)
		w.until(w.acknowledged("one"), "one has all")
		w.until(w.acknowledged("two"), "two has all")
		stopOne()
		stopTwo()
		require.Equal(t, 60, w.allEffects())
		counts, err := subscription.CountInbox(t.Context(), w.provider.Reader())
		require.NoError(t, err)
		require.Equal(t, map[string]int64{"one": 30, "two": 30}, counts)
	})
}

func TestMembersOfAGroupShare(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		one, stopOne := w.start(w.stream(), w.broker)
		two, stopTwo := w.start(w.stream(), w.broker.Connect())
		sent := 0
		w.until(func() bool {
			w.publish(placed(fmt.Sprintf("o-%d", sent), ""))
			sent++
			return one.Status().Handled > 20 && two.Status().Handled > 20
		}, "both get messages")
		w.until(w.acknowledged("shipping"), "all are acknowledged")
		stopOne()
		stopTwo()
		require.Equal(t, sent, w.allEffects())
		require.EqualValues(t, sent, one.Status().Handled+two.Status().Handled)
	})
}
