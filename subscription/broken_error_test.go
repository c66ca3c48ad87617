package subscription_test

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/subscription"
)

// textless is an error that is often returned as nil by mistake, and then has no text.
type textless struct{ reason string }

func (e *textless) Error() string { return e.reason }

// baseless can't say what it wraps.
type baseless struct{ cause *textless }

func (e *baseless) Error() string { return "baseless" }
func (e *baseless) Unwrap() error { return errors.New(e.cause.reason) }

// A handler that ends its goroutine, as a failed check of a test does, would take a lane with it.
func TestAttempts_AHandlerThatEndsItsGoroutineFailsItsMessageOnly(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
			if e.Note == "ends" {
				runtime.Goexit()
			}
			return effect(ctx, e)
		}))
		s.MaxAttempts = 2
		w.publish(placed("a", "ends"), placed("b", "fine"))
		_, stop := w.start(s, w.broker)
		w.until(w.acknowledged("shipping"), "all are acknowledged")
		stop()
		require.Equal(t, []string{"fine"}, w.effects("b"))
		all := w.parked()
		require.Len(t, all, 1)
		require.Contains(t, all[0].Error, "a handler failed: it ended its goroutine (runtime.Goexit; in a test FailNow does that")
	})
}

// An error that panics when it is read is its message's fault, and nobody else's.
func TestAttempts_AnErrorThatPanicsIsItsMessagesOnly(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
			var none *textless
			switch e.Note {
			case "no text":
				return none
			case "no cause":
				return &baseless{none}
			case "dropped":
				return subscription.Drop(none)
			case "parked":
				return subscription.Park(none)
			}
			return effect(ctx, e)
		}))
		s.MaxAttempts = 2
		w.publish(placed("a", "no text"), placed("b", "no cause"), placed("c", "dropped"), placed("d", "parked"), placed("e", "fine"))
		_, stop := w.start(s, w.broker)
		w.until(w.acknowledged("shipping"), "all are acknowledged")
		stop()
		require.Equal(t, []string{"fine"}, w.effects("e"))
		all := w.parked()
		require.Len(t, all, 4)
		for _, d := range all {
			require.Contains(t, d.Error, "panics when it is read")
			require.Equal(t, 2, d.Attempts)
		}
	})
}
