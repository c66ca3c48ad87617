package subscription_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/subscription"
)

// A77: when message after message fails, the breaker opens: they are tried one at
// a time, which fail again and reopen it, and no other pays; then all succeed.
func TestBreaker_A77_NobodyPaysForAnOutage(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		const n = 60
		var away atomic.Bool
		var now, crowd, probes atomic.Int64
		away.Store(true)
		s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
			if away.Load() {
				if len(w.logs.lines("tried one at a time")) > 0 {
					// Those that were under way when it opened may still be there.
					if now.Add(1); probes.Add(1) > 4 && now.Load() > 1 {
						crowd.Add(1)
					}
					defer now.Add(-1)
				}
				return fmt.Errorf("the warehouse does not answer: %w", errBad)
			}
			return effect(ctx, e)
		}))
		s.MaxAttempts, s.Lanes = 4, 4
		w.publish(orders(n)...)
		r, stop := w.start(s, w.broker)
		w.until(func() bool { return r.Status().Open && probes.Load() > 11 }, "it opens, and is not closed by probes that fail")
		require.Zero(t, w.deadLetters())
		require.Zero(t, crowd.Load(), "one at a time")
		away.Store(false)
		w.until(w.acknowledged("shipping"), "all are handled")
		stop()
		require.False(t, r.Status().Open)
		require.Equal(t, n, w.allEffects())
		require.Zero(t, w.deadLetters())
		require.Len(t, w.logs.lines("the breaker closes"), 1)
	})
}

// A77: poison doesn't open the breaker: neither what can't be decoded, nor what
// its handler parks, nor what fails again and again while others succeed.
func TestBreaker_A77_PoisonDoesNotTripIt(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
			switch e.Note {
			case "park":
				return subscription.Park(errBad)
			case "fail":
				return errBad
			}
			return effect(ctx, e)
		}))
		s.MaxAttempts = 12
		for i := range 20 {
			poison := placed(fmt.Sprintf("bytes-%d", i), "")
			poison.Body = []byte("rubbish")
			w.publish(poison, placed(fmt.Sprintf("park-%d", i), "park"))
		}
		w.publish(placed("a", "fail"), placed("b", "fail"))
		r, stop := w.start(s, w.broker)
		w.until(w.acknowledged("shipping"), "all are parked")
		stop()
		require.False(t, r.Status().Open)
		require.Empty(t, w.logs.lines("tried one at a time"))
		require.Equal(t, 42, w.deadLetters())
	})
}

// C-79, C-80: a paused subscription takes nothing and loses nothing.
func TestPause(t *testing.T) {
	w := newWorld(t, openSQLite(t))
	r, stop := w.start(w.stream(), w.broker)
	w.publish(orders(10)...)
	w.until(w.acknowledged("shipping"), "all are handled")
	r.Pause()
	require.True(t, r.Status().Paused)
	w.publish(orders(700)...)
	w.until(func() bool { return r.Status().InFlight > 0 }, "what was asked for comes")
	require.Equal(t, 10, w.allEffects())
	require.Less(t, r.Status().InFlight, int64(700))
	r.Resume()
	w.until(w.acknowledged("shipping"), "the rest is handled")
	stop()
	require.Equal(t, 710, w.allEffects())

	_, stop = w.start(w.stream(), w.broker)
	stop()
}

// A pause doesn't keep a runner from stopping.
func TestPause_EndsWithStop(t *testing.T) {
	w := newWorld(t, openSQLite(t))
	r, stop := w.start(w.stream(), w.broker)
	w.until(func() bool { return r.Status().Running }, "it has joined")
	r.Pause()
	w.publish(orders(10)...)
	stop()
	require.Equal(t, 10, w.broker.Unacknowledged(topic, "shipping"))
}

// The lag is what the group has still to settle, and the age of the oldest that is
// in hand.
func TestLag(t *testing.T) {
	w := newWorld(t, openSQLite(t))
	hold := make(chan struct{})
	s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
		<-hold
		return effect(ctx, e)
	}))
	r, err := subscription.NewRunner(subscription.RunnerConfig{Stream: s, Broker: w.broker})
	require.NoError(t, err)
	_, err = r.Lag(t.Context())
	require.ErrorContains(t, err, `subscription "shipping": its lag is not known while it isn't in its group`)

	r, stop := w.start(s, w.broker)
	w.publish(orders(1000)...)
	lag := func() subscription.Lag {
		l, err := r.Lag(t.Context())
		if err != nil {
			return subscription.Lag{Messages: -2}
		}
		return l
	}
	w.until(func() bool { return lag().Messages == 1000 && lag().Age > 10*time.Millisecond }, "all wait")
	close(hold)
	w.until(w.acknowledged("shipping"), "all are handled")
	w.until(func() bool { return lag() == subscription.Lag{} }, "nothing waits")
	stop()
	bare := &altered{Broker: w.broker}
	r, stop = w.start(s, bare)
	w.until(func() bool { return lag().Messages == -1 }, "an adapter that can't say")
	stop()
}
