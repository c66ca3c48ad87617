package subscription_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/subscription"
)

const shortBeat = 20 * time.Millisecond

// presence is a run that beats when it is told to, or after Start.
func (w *world) presence(forget time.Duration) *subscription.Presence {
	return w.presenceIf(forget, func() bool { return true })
}

func (w *world) presenceIf(forget time.Duration, consuming func() bool) *subscription.Presence {
	return subscription.NewPresence(w.provider, "shipping", shortBeat, forget, consuming, func(err error) { require.NoError(w.t, err) })
}

func (w *world) beat(runs ...*subscription.Presence) {
	w.t.Helper()
	for _, run := range runs {
		require.NoError(w.t, run.Beat(w.t.Context()))
	}
}

func (w *world) startPresence(p *subscription.Presence) (stop func()) {
	stop = p.Start(w.t.Context())
	w.t.Cleanup(stop)
	return stop
}

// in is the database's time, so much later.
func (w *world) in(d time.Duration) bun.Safe {
	return bun.Safe(dbtime.In(w.provider.DB().Dialect(), d))
}

func (w *world) died(subscription string, ago time.Duration) {
	w.exec("INSERT INTO subscription_runs (subscription, run, seen_at) VALUES (?, 'died', ?)", subscription, w.in(-ago))
}

func (w *world) runs() int { return w.count("SELECT count(*) FROM subscription_runs") }

// F-72: what a process left that died makes the next one careful, for as long as it
// takes until what it had in hand has come again; however old it is.
func TestRuns_F_72_CarefulAfterADeath(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.died("shipping", time.Hour)
		w.died("billing", time.Hour)
		const forget = 10 * shortBeat
		var consuming atomic.Bool
		var beats atomic.Int64
		run := w.presenceIf(forget, func() bool { beats.Add(1); return consuming.Load() })
		require.True(t, run.Careful(), "it has no row yet")
		begin := time.Now()
		stop := w.startPresence(run)
		w.until(func() bool { return beats.Load() >= 15 && time.Since(begin) > 2*forget }, "the run beats")
		require.True(t, run.Careful(), "nothing comes again while nobody consumes")
		consuming.Store(true)
		begin = time.Now()
		w.until(func() bool { return !run.Careful() }, "the dead run is forgotten")
		require.GreaterOrEqual(t, time.Since(begin), forget)
		require.Equal(t, 1, w.count("SELECT count(*) FROM subscription_runs WHERE subscription = 'shipping'"))
		stop()
		require.Zero(t, w.count("SELECT count(*) FROM subscription_runs WHERE subscription = 'shipping'"), "a stop leaves nothing")
		require.Equal(t, 1, w.runs(), "other subscriptions are not concerned")
	})
}

// F-72: others that are alive don't matter, until they give no sign any more.
func TestRuns_F_72_CarefulWhileOneIsSilent(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		older, run := w.presence(time.Hour), w.presence(time.Hour)
		w.beat(older)
		require.False(t, older.Careful(), "it is alone")
		w.beat(run)
		require.True(t, run.Careful(), "the other may have died before")
		w.until(func() bool { w.beat(older, run); return !run.Careful() }, "the other is alive")
		w.beat(older)
		require.False(t, older.Careful(), "who comes later is alive")

		w.until(func() bool { w.beat(run); return run.Careful() }, "the other gives no sign")
		require.Equal(t, 2, w.runs())
		w.until(func() bool { w.beat(older, run); return !run.Careful() }, "the other was only slow")

		w.startPresence(older)()
		w.beat(run)
		require.False(t, run.Careful(), "the other was stopped")
		require.Equal(t, 1, w.runs())
	})
}

// What is silent for this process, but fresh for the database, is not removed: it
// beat since this one looked.
func TestRuns_F_72_NobodyAliveIsForgotten(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.died("shipping", -time.Hour) // its row is from the future, and stays fresh
		run := w.presence(2 * shortBeat)
		begin := time.Now()
		w.until(func() bool { w.beat(run); return time.Since(begin) > 10*shortBeat }, "the run beats")
		require.True(t, run.Careful())
		require.Equal(t, 2, w.runs())
		w.exec("UPDATE subscription_runs SET seen_at = ? WHERE run = 'died'", w.in(-time.Hour))
		w.until(func() bool { w.beat(run); return !run.Careful() }, "the old row goes")
	})
}

// A beat without an answer changes nothing; a row that others have removed comes
// back.
func TestRuns_BeatsGoOn(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		run := w.presence(time.Hour)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorContains(t, run.Beat(ended), "subscription: refresh the row of run "+run.Run())
		require.True(t, run.Careful())
		w.beat(run)
		require.Error(t, run.Beat(ended))
		require.False(t, run.Careful())
		w.exec("DELETE FROM subscription_runs")
		w.beat(run)
		require.Equal(t, 1, w.count("SELECT count(*) FROM subscription_runs WHERE run = ?", run.Run()))
		w.died("shipping", 0)
		w.beat(w.presence(time.Hour), run)
		require.Error(t, run.Beat(ended))
		require.False(t, run.Careful(), "they came later")
	})
}

// A database that fails is told of, and doesn't end the beats.
func TestRuns_OutlastAnOutage(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		var failures atomic.Int64
		run := subscription.NewPresence(w.provider, "shipping", shortBeat, time.Hour, func() bool { return true }, func(err error) {
			if err != nil {
				require.ErrorContains(t, err, "subscription_runs")
				failures.Add(1)
			}
		})
		w.exec("ALTER TABLE subscription_runs RENAME TO away")
		stop := w.startPresence(run)
		w.until(func() bool { return failures.Load() > 2 }, "beats fail")
		require.True(t, run.Careful())
		w.exec("ALTER TABLE away RENAME TO subscription_runs")
		w.until(func() bool { return !run.Careful() }, "beats succeed")
		w.exec("ALTER TABLE subscription_runs RENAME TO away")
		before := failures.Load()
		w.until(func() bool { return failures.Load() > before }, "beats fail")
		stop()
		require.False(t, run.Careful())
		w.exec("ALTER TABLE away RENAME TO subscription_runs")
		require.Equal(t, 1, w.runs(), "who can't say that it stopped may have died")
	})
}

// F-66, U-13: the time in which nobody consumes is no uptime, and several that consume
// together count once.
func TestUptime_F_66_OnlyWhileConsuming(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		rarely := func(consuming bool) *subscription.Presence { // they beat once a minute
			return subscription.NewPresence(w.provider, "shipping", time.Minute, time.Hour, func() bool { return consuming }, nil)
		}
		// intervals are the lengths, in minutes.
		intervals := func() (minutes []int) {
			query := "SELECT CAST(round(" + dbtime.Seconds(w.provider.DB().Dialect(), "up_from", "up_until") + " / 60) AS integer) FROM subscription_uptime ORDER BY up_from"
			require.NoError(t, w.provider.DB().NewRaw(query).Scan(t.Context(), &minutes))
			return minutes
		}
		idle, a, b := rarely(false), rarely(true), rarely(true)
		w.beat(idle, idle)
		require.Empty(t, intervals())
		w.beat(a, b, idle)
		require.Equal(t, []int{0}, intervals())

		w.exec("UPDATE subscription_uptime SET up_from = ?, up_until = ?", w.in(-60*time.Minute), w.in(-2*time.Minute))
		w.beat(idle)
		require.Equal(t, []int{58}, intervals())
		w.beat(a, b)
		require.Equal(t, []int{60}, intervals())

		w.exec("UPDATE subscription_uptime SET up_until = ?", w.in(-10*time.Minute))
		w.beat(a, b)
		require.Equal(t, []int{50, 0}, intervals(), "the gap counts for nothing")

		// The database's clock was wrong for a while.
		w.exec("INSERT INTO subscription_uptime (subscription, up_from, up_until) VALUES ('shipping', ?, ?)", w.in(time.Hour), w.in(time.Hour))
		w.exec("UPDATE subscription_uptime SET up_from = ?, up_until = ? WHERE up_from BETWEEN ? AND ?", w.in(-3*time.Minute), w.in(-2*time.Minute), w.in(-time.Minute), w.in(0))
		w.beat(a, b)
		require.Equal(t, []int{50, 3, 0}, intervals())
	})
}

// F-72: after a death the first attempt at each message is counted before it is made,
// so that one that kills the process is found out.
func TestRunner_F_72_CountsBeforeTheFirstAttempt(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		counted := make(chan int, 1)
		attempts := func() int {
			return w.count("SELECT count(*) FROM inbox_attempts WHERE attempts = 1 AND run IN (SELECT run FROM subscription_runs WHERE run <> 'died')")
		}
		s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
			counted <- attempts()
			return effect(ctx, e)
		}))
		_, stop := w.start(s, w.broker)
		w.publish(placed("o-1", ""))
		require.Zero(t, <-counted, "nobody died")
		stop()
		require.Zero(t, w.runs())

		w.died("shipping", time.Hour)
		r, stop := w.start(s, w.broker)
		w.publish(placed("o-2", ""))
		require.Equal(t, 1, <-counted)
		w.until(w.acknowledged("shipping"), "it is handled")
		require.True(t, r.Careful())
		stop()
		require.Equal(t, 1, w.runs(), "the next one is careful, too")
		require.Zero(t, w.count("SELECT count(*) FROM inbox_attempts"))
		require.Equal(t, 2, w.allEffects())
	})
}

// Two programs whose contexts have a subscription of one name would take each other's messages, and
// neither would miss them: the second is refused. One of its own context, one that has ended, and
// one of another name don't matter.
func TestRuns_OfAnotherContextUnderTheSameName(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		start := func() error {
			r, err := subscription.NewRunner(subscription.RunnerConfig{Stream: w.stream(), Broker: w.broker})
			require.NoError(t, err)
			err = r.Start(t.Context())
			require.NoError(t, r.Stop(context.WithoutCancel(t.Context())))
			return err
		}
		seen := func(name, run string, ago time.Duration) {
			w.exec("INSERT INTO subscription_runs (subscription, run, seen_at) VALUES (?, ?, ?)", name, run, w.in(-ago))
		}
		seen("shipping", "of an earlier build", 0)
		seen("shipping", "shipping/1", 0)
		seen("shipping", "packing/1", time.Minute)
		seen("packing", "packing/1", 0)
		require.NoError(t, start())
		seen("shipping", "packing/2", time.Second)
		require.ErrorContains(t, start(), `subscription "shipping": a program of context packing has a subscription of this name in the same database, and one of context shipping is starting, so each would take the other's messages: give one of them another Name`)
	})
}
