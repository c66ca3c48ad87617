package subscription_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/subscription"
)

// What was taken with a message that is parked then stands behind it: no handler is called
// with it, whose transaction would only fail at the key that is held.
func TestHold_NoHandlerSeesWhatIsBehindAParkedMessage(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		var calls, behind atomic.Int64
		s := w.streamOf(subscription.On(func(_ context.Context, e OrderPlaced) error {
			calls.Add(1)
			if e.Note != "bad" {
				behind.Add(1)
			}
			return subscription.Park(errBad)
		}))
		s.OnParked = subscription.Hold
		w.publish(placed("o", "bad"), placed("o", "1"), placed("o", "2"))
		_, stop := w.start(s, w.broker)
		w.until(w.acknowledged("shipping"), "all are set aside")
		stop()
		require.EqualValues(t, 1, calls.Load())
		require.Zero(t, behind.Load())
		require.Equal(t, map[string]int{"parked": 1, "held": 2}, w.statuses("o"))
	})
}

// takes counts the dead letters that a run has tried to take.
type takes struct{ n *atomic.Int64 }

func (h takes) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

func (h takes) AfterQuery(_ context.Context, e *bun.QueryEvent) {
	if strings.HasPrefix(e.Query, "UPDATE dead_letters SET run = ") {
		h.n.Add(1)
	}
}

// C-90: a run that has found a dead letter, and gets to it when another one has it in hand,
// leaves it: no handler is called with it twice. The first run finds nine and has hands for
// eight; the second one begins with the ninth meanwhile.
func TestReplay_C_90_WhatAnotherRunHasInHandIsLeft(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		var mended atomic.Bool
		for _, key := range []string{"1", "2", "3", "4", "5", "6", "7", "8", "ninth"} {
			w.publish(placed(key, "bad"))
		}
		_, stop := w.start(w.breaking(&mended), w.broker)
		w.until(w.acknowledged("shipping"), "all are parked")
		stop()
		w.exec("UPDATE dead_letters SET status = 'waiting', due_at = first_at WHERE partition_key <> 'ninth'")
		w.exec("UPDATE dead_letters SET status = 'replay' WHERE partition_key = 'ninth'")

		var tried, ninth atomic.Int64
		blocked := func(p *hooked) (s subscription.Stream, in, out chan struct{}) {
			in, out = make(chan struct{}, 16), make(chan struct{})
			s = w.streamOf(subscription.On(func(_ context.Context, e OrderPlaced) error {
				if e.OrderID == "ninth" {
					ninth.Add(1)
				}
				in <- struct{}{}
				<-out
				return nil
			}))
			s.OnParked, s.Units = subscription.Hold, w.unitsOn(p)
			return s, in, out
		}
		first, has, goOn := blocked(&hooked{w.provider, w.provider.DB().WithQueryHook(takes{&tried})})
		_, stopFirst := w.start(first, w.broker)
		for range 8 {
			<-has
		}
		second, hasNinth, release := blocked(&hooked{w.provider, w.provider.DB()})
		_, stopSecond := w.start(second, w.broker)
		<-hasNinth
		close(goOn)
		w.until(func() bool { return tried.Load() > 8 }, "the first run gets to the ninth")
		close(release)
		w.until(func() bool { return w.count("SELECT count(*) FROM dead_letters WHERE status = 'replayed'") == 9 }, "all are handled")
		stopFirst()
		stopSecond()
		require.EqualValues(t, 1, ninth.Load(), "handlers were called with it so often")
	})
}

// A dead letter that a run had in hand when the database's clock was ahead, and which has died
// since, is handled once the clock is right, and an operator can discard it.
func TestReplay_WhatAClockThatWasWrongHasLeftIsTaken(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		ids := keep(w, keptRow{status: "waiting", key: "a", typ: "Ordering.OrderPlaced.v1"}, keptRow{status: "waiting", key: "b", typ: "Ordering.OrderPlaced.v1"})
		w.exec("UPDATE dead_letters SET run = 'gone', taken_until = '2999-01-01T00:00:00.000Z', due_at = first_at")
		r, err := subscription.NewDeadLetters(w.provider).Discard(t.Context(), subscription.DeadLetterFilter{IDs: ids[:1]}, subscription.DiscardOptions{Actor: "ada"})
		require.NoError(t, err)
		require.EqualValues(t, 1, r.Marked)
		_, stop := w.start(w.streamOf(subscription.On(func(context.Context, OrderPlaced) error { return nil })), w.broker)
		w.until(func() bool { return statuses(w, ids)[1] != "waiting" }, "it is looked at")
		stop()
		require.Equal(t, "discarded", statuses(w, ids)[0])
	})
}
