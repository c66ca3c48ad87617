package subscription_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/subscription"
)

var errBad = errors.New("not this one")

// failing fails for the note "bad", and calls itself often enough.
func (w *world) failing(runs *atomic.Int64) subscription.Stream {
	s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
		if e.Note == "bad" {
			runs.Add(1)
			return fmt.Errorf("prepare: %w", errBad)
		}
		return effect(ctx, e)
	}))
	s.MaxAttempts = 3
	return s
}

func (w *world) attempts() int { return w.count("SELECT count(*) FROM inbox_attempts") }

// A71, A72, A76, C-75, F-71: after its attempts a message is parked with what is
// needed to understand it, and is acknowledged then only.
func TestAttempts_A71_ParkedAfterTheLast(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		var runs atomic.Int64
		bad := placed("o", "bad")
		w.publish(bad, placed("o", "behind"), placed("other", "fine"))
		begin := time.Now()
		r, stop := w.start(w.failing(&runs), w.broker)
		w.until(w.acknowledged("shipping"), "all are acknowledged")
		stop()
		require.EqualValues(t, 3, runs.Load())
		require.EqualValues(t, 2, r.Status().Retries)
		require.Equal(t, []string{"behind"}, w.effects("o"))
		all := w.parked()
		require.Len(t, all, 1)
		d := all[0]
		require.Equal(t, "failed", d.Reason)
		require.Equal(t, "parked", d.Status)
		require.Equal(t, 3, d.Attempts)
		require.Equal(t, "prepare: not this one", d.Error)
		require.Equal(t, "*errors.errorString", d.ErrorType)
		require.Equal(t, bad.Body, d.Body)
		require.WithinDuration(t, begin, d.FirstAt.Time, time.Minute)
		require.False(t, d.FirstAt.Time.After(d.LastAt.Time))
		require.Zero(t, w.attempts(), "the counting is over")
		require.Equal(t, 3, w.inbox())
	})
}

// A71, F-71: the count of attempts outlives the process. And the shutdown that
// comes while a handler runs is not among them (F-80).
// Conformance: C-80, F-71.
func TestAttempts_A71_OutliveARestart(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		var runs atomic.Int64
		s := w.failing(&runs)
		s.Backoff = time.Hour // so that each start has one attempt
		w.publish(placed("o", "bad"))
		for n := range 3 {
			_, stop := w.start(s, w.broker)
			w.until(func() bool { return runs.Load() == int64(n+1) && (w.attempts() == 1 || w.deadLetters() == 1) }, "attempt %d", n+1)
			stop()
		}
		require.Equal(t, 1, w.deadLetters())
		require.Equal(t, 3, w.parked()[0].Attempts)
	})
}

func TestAttempts_F_80_ShutdownIsNoFailure(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		in := make(chan struct{}, 1)
		s := w.streamOf(subscription.On(func(ctx context.Context, _ OrderPlaced) error {
			in <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		}))
		w.publish(placed("o", ""))
		// The second time it has been delivered before, and the attempt is counted
		// before it is made.
		for range 2 {
			r, err := subscription.NewRunner(subscription.RunnerConfig{Stream: s, Broker: w.broker})
			require.NoError(t, err)
			require.NoError(t, r.Start(t.Context()))
			<-in
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			require.Error(t, r.Stop(ctx))
			require.Zero(t, w.count("SELECT COALESCE(sum(attempts), 0) FROM inbox_attempts"))
		}
		_, stop := w.start(w.stream(), w.broker)
		w.until(w.acknowledged("shipping"), "it is handled")
		stop()
		require.Zero(t, w.attempts())
		require.Equal(t, []string{""}, w.effects("o"))
	})
}

// F-72: an attempt whose process died is known of by the next. After the last one
// the message is parked without another.
func TestAttempts_F_72_CrashesAreCounted(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		m := placed("o", "bad")
		w.publish(m)
		w.exec("INSERT INTO inbox_attempts (subscription, message_id, attempts, crashes, run) VALUES ('shipping', ?, 3, 2, 'dead')", m.ID)
		var runs atomic.Int64
		_, stop := w.start(w.failing(&runs), w.broker)
		w.until(w.acknowledged("shipping"), "it is parked")
		stop()
		require.Zero(t, runs.Load())
		d := w.parked()[0]
		require.Equal(t, "crashed", d.Reason)
		require.Equal(t, "3 of its 3 attempts ended with the process", d.Error)
		require.Zero(t, w.attempts())
	})
}

// F-72: what was in hand when the process died is handled alone from the second
// time on, so that only the culprit goes down again.
func TestAttempts_F_72_SuspectsAreHandledAlone(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		var now, most, alone atomic.Int64
		s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
			n := now.Add(1)
			defer now.Add(-1)
			for {
				if m := most.Load(); n <= m || most.CompareAndSwap(m, n) {
					break
				}
			}
			if e.Note == "suspect" && n == 1 {
				alone.Add(1)
			}
			return effect(ctx, e)
		}))
		all := orders(50)
		for i := range 5 {
			m := placed(fmt.Sprintf("suspect-%d", i), "suspect")
			all = append(all, m)
			w.exec("INSERT INTO inbox_attempts (subscription, message_id, attempts, crashes, run) VALUES ('shipping', ?, 2, 1, 'dead')", m.ID)
		}
		w.publish(all...)
		_, stop := w.start(s, w.broker)
		w.until(w.acknowledged("shipping"), "all are handled")
		stop()
		require.EqualValues(t, 5, alone.Load())
		require.Greater(t, most.Load(), int64(1), "the others were not")
		require.Zero(t, w.attempts())
	})
}

// A76, F-79: a message that can't be parked is not acknowledged: it waits until it
// can be.
func TestAttempts_A76_NotAcknowledgedBeforeItIsParked(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		refuse, allow := []string{"CREATE TRIGGER refuse BEFORE INSERT ON dead_letters BEGIN SELECT RAISE(ABORT, 'no room'); END"}, "DROP TRIGGER refuse"
		if w.isPostgres() {
			refuse = []string{
				"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no room'; END $$",
				"CREATE TRIGGER refuse BEFORE INSERT ON dead_letters FOR EACH ROW EXECUTE FUNCTION refuse()",
			}
			allow += " ON dead_letters"
		}
		for _, statement := range refuse {
			w.exec(statement)
		}
		var runs atomic.Int64
		w.publish(placed("o", "bad"), placed("o", "behind"), placed("other", ""))
		r, stop := w.start(w.failing(&runs), w.broker)
		w.until(func() bool { return strings.Contains(r.Status().LastError, "no room") && w.allEffects() == 1 }, "there is no room, and others go on")
		require.Equal(t, 2, w.broker.Unacknowledged(topic, "shipping"))
		w.exec(allow)
		w.until(w.acknowledged("shipping"), "it is parked")
		stop()
		require.Equal(t, 1, w.deadLetters())
		require.EqualValues(t, 3, runs.Load(), "its handler is not called again")
		require.Equal(t, []string{"behind"}, w.effects("o"))
	})
}

// C-79: a handler's own wishes: not now, and never.
func TestHandler_RetryAfterAndDrop(t *testing.T) {
	require.NoError(t, subscription.RetryAfter(nil, time.Second))
	require.NoError(t, subscription.Drop(nil))
	databases(t, func(t *testing.T, w *world) {
		var runs atomic.Int64
		s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
			switch {
			case e.Note == "later" && runs.Add(1) < 6:
				return fmt.Errorf("wait: %w", subscription.RetryAfter(errBad, time.Millisecond))
			case e.Note == "never":
				if err := effect(ctx, e); err != nil {
					return err
				}
				return fmt.Errorf("stop: %w", subscription.Drop(errBad))
			}
			return effect(ctx, e)
		}))
		s.MaxAttempts = 2
		w.publish(placed("o", "later"), placed("o", "never"), placed("o", "last"))
		r, stop := w.start(s, w.broker)
		w.until(w.acknowledged("shipping"), "all are settled")
		stop()
		require.Equal(t, []string{"later", "last"}, w.effects("o"))
		require.EqualValues(t, 6, runs.Load(), "more often than a failure may")
		require.Zero(t, w.deadLetters())
		require.EqualValues(t, 1, r.Status().Dropped)
		require.EqualValues(t, 2, r.Status().Handled)
		require.Equal(t, 3, w.inbox())
		require.Len(t, w.logs.lines("dropped by its handler"), 1)
	})
}

// F-73: a handler that takes too long has failed, and its lane is free.
func TestHandler_F_73_Timeout(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
			if e.Note == "slow" {
				if err := effect(ctx, e); err != nil {
					return err
				}
				<-ctx.Done()
				return nil // it has not noticed
			}
			return effect(ctx, e)
		}))
		s.Timeout, s.MaxAttempts, s.Lanes = time.Second, 2, 1
		w.publish(placed("o", "slow"), placed("other", ""))
		_, stop := w.start(s, w.broker)
		w.until(w.acknowledged("shipping"), "both are settled")
		stop()
		require.Empty(t, w.effects("o"))
		require.Equal(t, []string{""}, w.effects("other"))
		require.Equal(t, "subscription: the handler took longer than 1s (Stream.Timeout)", w.parked()[0].Error)
		require.Equal(t, 2, w.parked()[0].Attempts)
	})
}

// A handler that doesn't notice that its time is over keeps its lane, and the log says which
// message it is at.
func TestHandler_ThatDoesNotEndIsNamed(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		release := make(chan struct{})
		s := w.streamOf(subscription.On(func(context.Context, OrderPlaced) error {
			<-release
			return nil
		}))
		s.Timeout, s.MaxAttempts = time.Millisecond, 1
		w.publish(placed("o", ""))
		r, stop := w.start(s, w.broker)
		w.until(func() bool {
			lines := w.logs.lines("a handler goes on although its time is over")
			return len(lines) == 1 && strings.Contains(lines[0], "key=o timeout=1ms")
		}, "the log names it")
		require.EqualValues(t, 1, r.Status().Overdue)
		require.WithinDuration(t, time.Now(), r.Status().OverdueSince, time.Minute)
		close(release)
		w.until(w.acknowledged("shipping"), "it is parked")
		require.Zero(t, r.Status().Overdue)
		stop()
	})
}

// A72: the stack of a panic is kept.
func TestAttempts_A72_PanicsKeepTheirStack(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		s := w.streamOf(subscription.On(func(context.Context, OrderPlaced) error { panic("out of luck\x00") }))
		s.MaxAttempts = 1
		w.publish(placed("o", ""))
		_, stop := w.start(s, w.broker)
		w.until(w.acknowledged("shipping"), "it is parked")
		stop()
		d := w.parked()[0]
		require.Equal(t, "the handler panicked: out of luck\uFFFD", d.Error)
		require.Equal(t, "string", d.ErrorType)
		require.Contains(t, d.Stack, "attempts_test.go")
	})
}
