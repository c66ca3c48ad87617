package subscription_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/subscription"
)

// breaking parks what has the note "bad" until it is mended.
func (w *world) breaking(mended *atomic.Bool) subscription.Stream {
	s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
		if e.Note == "bad" && !mended.Load() {
			return subscription.Park(errBad)
		}
		if subscription.Replayed(ctx) {
			e.Note += " again"
		}
		return effect(ctx, e)
	}))
	s.OnParked = subscription.Hold
	return s
}

// ask is what an operator does who wants parked messages handled again.
func (w *world) ask(key string) {
	w.exec("UPDATE dead_letters SET status = 'replay', replays = replays + 1 WHERE status = 'parked' AND partition_key = ?", key)
}

func (w *world) statuses(key string) map[string]int {
	n := map[string]int{}
	for _, d := range w.parked() {
		if d.PartitionKey == key {
			n[d.Status]++
		}
	}
	return n
}

func numbered(key string, from, to int) []broker.Message {
	var all []broker.Message
	for i := from; i < to; i++ {
		all = append(all, placed(key, fmt.Sprint(i)))
	}
	return all
}

// A75, A78, F-78, C-85, C-87, C-88: a parked message holds its key, and nothing else, also
// across a restart; its replay, and what is behind it, come in order; and what
// arrives meanwhile comes after that.
// Conformance: C-85, C-87, C-88, F-78, U-18.
func TestHold_A78_KeyWaitsAndFollowsInOrder(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		var mended atomic.Bool
		s := w.breaking(&mended)
		s.Batch = 8
		w.publish(placed("o", "first"), placed("o", "bad"))
		w.publish(append(numbered("o", 0, 20), numbered("other", 0, 20)...)...)
		r, stop := w.start(s, w.broker)
		w.until(w.acknowledged("shipping"), "all are set aside or handled")
		stop()
		require.Equal(t, []string{"first"}, w.effects("o"))
		require.Len(t, w.effects("other"), 20)
		require.Equal(t, map[string]int{"parked": 1, "held": 20}, w.statuses("o"))
		require.EqualValues(t, 21, r.Status().Parked)
		require.Len(t, w.logs.lines("level=WARN"), 1, "about the first only")

		w.publish(numbered("o", 20, 30)...)
		r, stop = w.start(s, w.broker)
		w.until(w.acknowledged("shipping"), "a restart knows that the key is held")
		require.Equal(t, []string{"first"}, w.effects("o"))
		w.ask("o")
		w.until(func() bool { return w.statuses("o")["parked"] == 1 && w.parked()[0].Replays == 1 }, "it is still bad")
		require.Equal(t, 2, w.parked()[0].Attempts)
		require.Equal(t, []string{"first"}, w.effects("o"))

		mended.Store(true)
		w.ask("o")
		var behind sync.WaitGroup
		behind.Go(func() {
			for i := 30; i < 60; i++ {
				w.publish(placed("o", fmt.Sprint(i)))
			}
		})
		behind.Wait()
		want := []string{"first", "bad again"}
		for i := range 60 {
			want = append(want, fmt.Sprint(i))
		}
		w.until(func() bool { return len(w.effects("o")) == len(want) }, "the key goes on")
		w.until(w.acknowledged("shipping"), "nothing is left")
		stop()
		got := w.effects("o")
		for i, note := range got {
			require.Contains(t, []string{want[i], want[i] + " again"}, note, "%v", got)
		}
		require.Equal(t, w.deadLetters(), w.statuses("o")["replayed"])
		require.EqualValues(t, w.deadLetters(), r.Status().Replayed)
		require.Equal(t, 82, w.inbox())
	})
}

// Another member parks a message of the key behind the look-up and before the commit.
func TestHold_AKeyThatIsHeldMeanwhile(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		var once sync.Once
		s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
			once.Do(func() { keep(w, keptRow{status: "parked", key: e.OrderID}) })
			return effect(ctx, e)
		}))
		s.OnParked = subscription.Hold
		w.publish(placed("o", ""))
		_, stop := w.start(s, w.broker)
		w.until(w.acknowledged("shipping"), "it stands behind the other")
		stop()
		require.Empty(t, w.effects("o"))
		require.Equal(t, map[string]int{"parked": 1, "held": 1}, w.statuses("o"))
	})
}

// C-89: what is behind a message goes on when that is discarded.
func TestHold_DiscardFreesTheKey(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		var mended atomic.Bool
		w.publish(placed("o", "bad"), placed("o", "1"), placed("o", "2"))
		_, stop := w.start(w.breaking(&mended), w.broker)
		w.until(w.acknowledged("shipping"), "all are set aside")
		w.exec("UPDATE dead_letters SET status = 'discarded' WHERE status = 'parked'")
		w.until(func() bool { return len(w.effects("o")) == 2 }, "the rest follows")
		stop()
		require.Equal(t, []string{"1 again", "2 again"}, w.effects("o"))
	})
}

// C-86: a held key has a limit. What is above it stays with the broker, and others
// go on.
func TestHold_C_86_OverflowIsNotDropped(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		var mended atomic.Bool
		s := w.breaking(&mended)
		s.HoldLimit = 3
		w.publish(placed("o", "bad"))
		w.publish(append(numbered("o", 0, 6), numbered("other", 0, 20)...)...)
		r, stop := w.start(s, w.broker)
		w.until(func() bool { return len(w.effects("other")) == 20 && w.deadLetters() == 3 }, "the key is full")
		w.until(func() bool { return w.broker.Unacknowledged(topic, "shipping") == 4 }, "the others go on")
		require.Equal(t, map[string]int{"parked": 1, "held": 2}, w.statuses("o"))
		require.Contains(t, r.Status().LastError, "Stream.HoldLimit")
		mended.Store(true)
		w.ask("o")
		w.until(w.acknowledged("shipping"), "there is room")
		stop()
		got := w.effects("o")
		require.Len(t, got, 7)
		for i, note := range got[1:] {
			require.Contains(t, []string{fmt.Sprint(i), fmt.Sprint(i) + " again"}, note, "%v", got)
		}
	})
}

// C-90: two members of a group, each handling what is replayed, handle each
// message once, those of a key in order.
func TestReplay_C_90_OnceByMany(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		const keys, each = 20, 5
		var mended atomic.Bool
		s := w.breaking(&mended)
		for k := range keys {
			w.publish(placed(fmt.Sprintf("o-%d", k), "bad"))
			w.publish(numbered(fmt.Sprintf("o-%d", k), 1, each)...)
		}
		_, stop := w.start(s, w.broker)
		_, stopOther := w.start(s, w.broker)
		w.until(w.acknowledged("shipping"), "all are set aside")
		mended.Store(true)
		w.exec("UPDATE dead_letters SET status = 'replay' WHERE status = 'parked'")
		w.until(func() bool { return w.allEffects() == keys*each }, "all are replayed")
		stop()
		stopOther()
		for k := range keys {
			require.Equal(t, []string{"bad again", "1 again", "2 again", "3 again", "4 again"}, w.effects(fmt.Sprintf("o-%d", k)))
		}
	})
}

// F-78: under Skip a replay comes after its followers, and the handler is told.
// It reaches the subscription that parked it, and no other (A75, C-77).
func TestReplay_A75_ReachesOnlyItsSubscription(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		var mended atomic.Bool
		s := w.breaking(&mended)
		s.OnParked = subscription.Skip
		other := w.stream()
		other.Name = "billing"
		w.publish(placed("o", "bad"), placed("o", "1"))
		_, stop := w.start(s, w.broker)
		_, stopOther := w.start(other, w.broker)
		w.until(func() bool { return w.acknowledged("shipping")() && w.acknowledged("billing")() }, "both are done")
		require.Equal(t, map[string]int{"parked": 1}, w.statuses("o"))
		mended.Store(true)
		w.ask("o")
		w.until(func() bool { return w.allEffects() == 4 }, "it is replayed")
		stop()
		stopOther()
		got := w.effects("o")
		require.Equal(t, "bad again", got[3])
		require.ElementsMatch(t, []string{"bad", "1", "1"}, got[:3])
	})
}

// F-78: nothing happens before a replay is due. One that two processes died of is for an
// operator to decide; one that a shutdown ended goes on with the next.
// Conformance: U-18.
func TestReplay_F_78_DueTakenAndInterrupted(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		var mended atomic.Bool
		s := w.breaking(&mended)
		for _, key := range []string{"due", "later", "dead", "once"} {
			w.publish(placed(key, "bad"))
		}
		_, stop := w.start(s, w.broker)
		w.until(w.acknowledged("shipping"), "all are parked")
		stop()
		mended.Store(true)
		hour := map[bool]string{true: "now() + interval '1 hour'", false: "strftime('%Y-%m-%dT%H:%M:%fZ','now','+1 hour')"}[w.isPostgres()]
		w.exec("UPDATE dead_letters SET due_at = " + hour + " WHERE partition_key = 'later'")
		w.exec("UPDATE dead_letters SET taken_until = first_at, begun = TRUE, run = 'gone', attempts = attempts + 1 WHERE partition_key IN ('dead', 'once')")
		w.exec("UPDATE dead_letters SET crashes = 1 WHERE partition_key = 'dead'")
		w.exec("UPDATE dead_letters SET status = 'replay'")
		in := make(chan struct{}, 10)
		stuck := s
		stuck.Handlers = []subscription.Handler{subscription.On(func(ctx context.Context, _ OrderPlaced) error {
			in <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		})}
		r, err := subscription.NewRunner(subscription.RunnerConfig{Stream: stuck, Broker: w.broker})
		require.NoError(t, err)
		require.NoError(t, r.Start(t.Context()))
		<-in
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		_ = r.Stop(ctx)
		require.Equal(t, map[string]int{"replay": 1}, w.statuses("due"))

		_, stop = w.start(s, w.broker)
		w.until(func() bool {
			return w.statuses("due")["replayed"] == 1 && w.statuses("dead")["parked"] == 1 && w.statuses("once")["replayed"] == 1
		}, "each has its way")
		stop()
		require.Equal(t, map[string]int{"replay": 1}, w.statuses("later"))
		for _, d := range w.parked() {
			switch d.PartitionKey {
			case "due":
				require.Equal(t, 2, d.Attempts, "the shutdown cost it nothing")
			case "dead":
				require.Equal(t, "crashed", d.Reason)
				require.Equal(t, "2 attempts at it ended with the process while it was replayed", d.Error)
			case "once":
				require.Equal(t, 3, d.Attempts, "one that a process died of is tried once more, by itself")
			}
		}
	})
}

// What this build can't handle is parked again, and says why.
func TestReplay_WithoutAHandler(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		s := w.stream()
		w.publish(broker.Message{ID: "x", Topic: topic, Key: "o", Body: []byte("rubbish")})
		_, stop := w.start(s, w.broker)
		w.until(w.acknowledged("shipping"), "it is parked")
		w.exec("UPDATE dead_letters SET body = ?", message("x", "Ordering.OrderLost.v1", "o", "{}").Body)
		w.ask("o")
		w.until(func() bool { return w.parked()[0].Replays == 1 && w.parked()[0].Status == "parked" }, "it is parked again")
		stop()
		require.Contains(t, w.parked()[0].Error, `this build has no handler for "Ordering.OrderLost.v1"`)
	})
}
