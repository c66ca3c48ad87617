package subscription_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// S2-18, S4-04, C-72
// Conformance: C-94.
func TestEffectOnceHoweverOftenDelivered(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		sent, deliveries := orders(10), 0
		for times := range sent { // 1 to 10 times
			for range times + 1 {
				w.publish(sent[times])
				deliveries++
			}
		}
		r, stop := w.start(w.stream(), w.broker)
		w.until(w.acknowledged("shipping"), "all are acknowledged")
		w.publish(sent...) // and once more, later
		w.until(w.acknowledged("shipping"), "the later ones too")
		stop()

		for i := range sent {
			require.Len(t, w.effects(fmt.Sprintf("o-%d", i)), 1)
		}
		require.Equal(t, len(sent), w.inbox())
		require.EqualValues(t, len(sent), r.Status().Handled)
		require.EqualValues(t, deliveries, r.Status().Duplicates)
	})
}

// C-08, C-09, C-70
func TestHandlerDoesNotRunOnDuplicates(t *testing.T) {
	w := newWorld(t, openSQLite(t))
	var runs atomic.Int64
	s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
		if runs.Add(1) > 1 {
			return subscription.Park(errors.New("there is a shipment already")) // what a duplicate would lead to
		}
		return effect(ctx, e)
	}))
	m := placed("o", "")
	w.publish(m, m, m) // in one batch
	_, stop := w.start(s, w.broker)
	w.until(w.acknowledged("shipping"), "all are acknowledged")
	stop()

	w.publish(m)
	_, stop = w.start(s, w.broker)
	w.until(w.acknowledged("shipping"), "also after a restart")
	stop()
	require.EqualValues(t, 1, runs.Load())
	require.Zero(t, w.deadLetters())
}

func TestDuplicatesAcrossRestarts(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		sent := orders(50)
		var handled, duplicates int64
		for range 3 {
			w.publish(sent...)
			r, stop := w.start(w.stream(), w.broker)
			w.until(w.acknowledged("shipping"), "all are acknowledged")
			stop()
			handled += r.Status().Handled
			duplicates += r.Status().Duplicates
		}
		require.EqualValues(t, 50, handled)
		require.EqualValues(t, 100, duplicates)
		require.Equal(t, 50, w.allEffects())
	})
}

// C-03, F-67, C-71: two members that both have every message, at the same time: as when a group
// is rebalanced under a handler that goes on.
// Conformance: S4-22, U-15.
func TestConcurrentDuplicatesHaveOneEffect(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		const n = 20
		other := memory.New(memory.Config{})

		// Nobody's handler ends before somebody else's has begun on some message,
		// so that the look-up before handlers can't be what decides.
		var inside atomic.Int64
		meet := make(chan struct{})
		s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
			if inside.Add(1) == 2*4 {
				close(meet)
			}
			select {
			case <-meet:
			case <-ctx.Done():
				return ctx.Err()
			}
			return effect(ctx, e)
		}))
		s.Lanes = 4
		one, stopOne := w.start(s, w.broker)
		two, stopTwo := w.start(s, other)
		w.until(func() bool { return !one.Careful() && !two.Careful() }, "each knows that the other is alive")
		sent := orders(n)
		w.publish(sent...)
		require.NoError(t, other.Publish(t.Context(), sent))
		w.until(func() bool {
			return w.broker.Unacknowledged(topic, "shipping")+other.Unacknowledged(topic, "shipping") == 0
		}, "all are acknowledged")
		stopOne()
		stopTwo()

		a, b := one.Status(), two.Status()
		require.Equal(t, n, w.allEffects())
		require.Equal(t, n, w.inbox())
		require.EqualValues(t, n, a.Handled+b.Handled)
		require.EqualValues(t, n, a.Duplicates+b.Duplicates)
		require.Zero(t, a.Retries+b.Retries, "the loser of a race has not failed")
	})
}

// C-08: a loser may fail for a reason of its own before it comes to its inbox row.
func TestLoserOfARaceIsNotParkedOrFailed(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		other := memory.New(memory.Config{})
		m := placed("o", "")
		w.publish(m)
		require.NoError(t, other.Publish(t.Context(), []broker.Message{m}))

		winnerDone, loserIn := make(chan struct{}), make(chan struct{})
		for name, how := range map[string]func(error) error{"fails": func(err error) error { return err }, "parks": subscription.Park} {
			t.Run(name, func(t *testing.T) {
				loser := w.streamOf(subscription.On(func(context.Context, OrderPlaced) error {
					close(loserIn)
					<-winnerDone
					return how(errors.New("there is a shipment already"))
				}))
				loser.Name = name
				winner := w.stream()
				winner.Name = name
				r, stop := w.start(loser, other)
				<-loserIn
				_, stopWinner := w.start(winner, w.broker)
				w.until(w.acknowledged(name), "the winner is done")
				close(winnerDone)
				w.until(func() bool { return other.Unacknowledged(topic, name) == 0 }, "the loser is done")
				stop()
				stopWinner()
				require.EqualValues(t, 1, r.Status().Duplicates)
				require.Zero(t, r.Status().Retries)
				require.Zero(t, w.deadLetters())
				winnerDone, loserIn = make(chan struct{}), make(chan struct{})
			})
		}
		require.Empty(t, w.logs.lines("level=WARN"))
	})
}

// F-68, S2-18: the effect is durable, the acknowledgement was lost with the process.
func TestCrashBetweenCommitAndAck(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.publish(orders(30)...)
		first, stop := w.start(w.stream(), &altered{Broker: w.broker, ack: func([]broker.Delivery) []broker.Delivery { return nil }})
		w.until(func() bool { return first.Status().Handled == 30 }, "all are handled")
		require.Equal(t, 30, w.broker.Unacknowledged(topic, "shipping"))
		stop()

		second, stop := w.start(w.stream(), w.broker)
		w.until(w.acknowledged("shipping"), "all are acknowledged")
		stop()
		require.Equal(t, 30, w.allEffects())
		require.Zero(t, second.Status().Handled)
		require.EqualValues(t, 30, second.Status().Duplicates)
	})
}

// S4-22, C-36
func TestInboxRowAndEffectAreOneTransaction(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		fail := make(chan struct{})
		s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
			if err := effect(ctx, e); err != nil {
				return err
			}
			select {
			case <-fail:
				return nil
			default:
				return errors.New("after the effect")
			}
		}))
		w.publish(placed("o", ""))
		r, stop := w.start(s, w.broker)
		w.until(func() bool { return r.Status().Retries > 3 }, "it is tried again")
		require.Zero(t, w.allEffects())
		require.Zero(t, w.inbox())
		require.Equal(t, 1, w.broker.Unacknowledged(topic, "shipping"), "nothing is acknowledged before its effect is durable")
		close(fail)
		w.until(w.acknowledged("shipping"), "it succeeds")
		stop()
		require.Equal(t, 1, w.allEffects())
		require.Equal(t, 1, w.inbox())
	})
}

// A handler that saves nothing has its inbox row all the same.
func TestHandlerWithoutAnEffect(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		var runs atomic.Int64
		s := w.streamOf(subscription.On(func(context.Context, OrderPlaced) error { runs.Add(1); return nil }))
		m := placed("o", "")
		w.publish(m)
		_, stop := w.start(s, w.broker)
		w.until(w.acknowledged("shipping"), "it is acknowledged")
		w.publish(m)
		w.until(w.acknowledged("shipping"), "the duplicate too")
		stop()
		require.EqualValues(t, 1, runs.Load())
		counts, err := subscription.CountInbox(t.Context(), w.provider.Reader())
		require.NoError(t, err)
		require.Equal(t, map[string]int64{"shipping": 1}, counts)
	})
}

// The commit happened, and its answer never came.
func TestUnknownCommitIsLeftToTheInbox(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		for _, committed := range []bool{true, false} {
			t.Run(fmt.Sprintf("committed=%v", committed), func(t *testing.T) {
				p := &faulty{Provider: w.provider}
				p.commit = func(ctx context.Context, s uow.Session, statements []uow.Statement) error {
					if p.commits.Add(1) > 1 {
						return s.Commit(ctx, statements)
					}
					if committed {
						require.NoError(t, s.Commit(ctx, statements))
					}
					return &uow.CommitUnknownError{Err: errors.New("connection reset")}
				}
				s := w.stream()
				s.Name = t.Name()
				s.Units = w.unitsOn(p)
				key := fmt.Sprintf("o-%v", committed)
				w.publish(placed(key, ""))
				r, stop := w.start(s, w.broker)
				w.until(w.acknowledged(s.Name), "it is acknowledged")
				stop()
				require.Len(t, w.effects(key), 1)
				require.Zero(t, r.Status().Duplicates)
			})
			w.broker = memory.New(memory.Config{})
		}
	})
}
