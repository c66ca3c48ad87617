package subscription_test

import (
	"context"
	"errors"
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
