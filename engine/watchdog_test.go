package engine

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/subscription"
)

// timed is a watchdog whose clock stands until it is moved.
func timed() (*watchdog, *logs, func(time.Duration)) {
	l := &logs{}
	w := newWatchdog(slog.New(slog.NewTextHandler(l, nil)))
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	w.now = func() time.Time { return now }
	return w, l, func(d time.Duration) { now = now.Add(d) }
}

func codes(d diagnosis) (all []string) {
	for _, r := range d.Reasons {
		all = append(all, r.Code)
	}
	return all
}

// F-21: the oldest row gets older and nothing is published: that is not healthy,
// and the log says so, once when it begins and once when it is over.
func TestWatchdog_F_21_NotMoving(t *testing.T) {
	w, l, pass := timed()
	look := func(published int64, oldest time.Duration) diagnosis {
		s := well()
		s.partner(waits(2, oldest))
		s.partner(func(l *laneSight) { l.stats.Counts[outbox.Published] = published })
		return w.judge(s)
	}
	require.Equal(t, healthy, look(7, time.Second).State)
	pass(stillAfter)
	require.Equal(t, []string{"rows_late"}, codes(look(8, stillAfter)), "one was published meanwhile")
	for range 4 {
		pass(stillAfter / 4)
		look(8, 2*stillAfter)
	}
	d := look(8, 2*stillAfter)
	require.Equal(t, stuck, d.State)
	require.Equal(t, []string{"not_moving", "rows_late"}, codes(d)[:2], "the worst first")
	require.Equal(t, "outbox default to partner: nothing has been published for 5m0s although 2 rows wait, the oldest for 10m0s; and 1 more", d.Summary)
	require.Contains(t, d.Reasons[0].Text, "; since 2026-01-02T03:14:05Z. `waybill partitions --target partner` shows who")
	require.Len(t, l.with("level=WARN", "is stuck", "not_moving"), 1)

	// What is not known is not over.
	pass(time.Second)
	s := well()
	s.parts.Providers["default"] = newComponent(false, "gone")
	s.outboxes["default"] = outboxSight{err: "gone"}
	require.Equal(t, []string{"database_down"}, codes(w.judge(s)))
	require.Empty(t, l.with("has recovered"))
	pass(time.Second)
	require.Equal(t, []string{"not_moving", "rows_late"}, codes(look(8, 2*stillAfter)))
	require.Len(t, l.with("not_moving"), 1)

	pass(time.Second)
	require.Equal(t, healthy, look(9, time.Second).State)
	require.Len(t, l.with("has recovered", "not_moving"), 1)
}

// What is so for a moment when something starts counts only when it lasts, and
// since is when it was seen first.
func TestWatchdog_SettlesAndRemembers(t *testing.T) {
	w, _, pass := timed()
	down := well()
	down.parcels(func(c *subscriptionSight) { c.status.Running = false })
	begin := w.now()
	require.Equal(t, healthy, w.judge(down).State)
	pass(settling - 1)
	require.Equal(t, healthy, w.judge(down).State)
	pass(1)
	require.Equal(t, begin, *w.judge(down).Reasons[0].Since)
	pass(time.Hour)
	require.Equal(t, begin, *w.judge(down).Reasons[0].Since)
	require.Equal(t, healthy, w.judge(well()).State)
	pass(time.Hour)
	require.Equal(t, healthy, w.judge(down).State, "anew")
	require.Len(t, w.since, 1, "nothing is kept of what is over")
}

// A subscription that neither handles nor catches up stands still; one that does
// either does not.
func TestWatchdog_ASubscriptionThatStandsStill(t *testing.T) {
	w, l, pass := timed()
	look := func(handled, left int64) diagnosis {
		pass(stillAfter / 2)
		s := well()
		s.parcels(func(c *subscriptionSight) { c.status.Handled, c.lag = handled, &subscription.Lag{Messages: left} })
		return w.judge(s)
	}
	for handled := range int64(6) {
		require.Equal(t, healthy, look(handled, 100).State, "it handles, and as much comes")
	}
	for left := range int64(6) {
		require.Equal(t, healthy, look(6, 50-left).State, "others of its group handle")
	}
	look(6, 60)
	d := look(6, 70)
	require.Equal(t, stuck, d.State)
	require.Equal(t, []string{"subscription_still"}, codes(d))
	require.Equal(t, healthy, look(7, 70).State)
	require.Len(t, l.with("subscription_still"), 2)
	look(7, 0)
	look(7, 0)
	require.Equal(t, healthy, look(7, 1).State, "it had nothing to do until now")
}

// A82: a worker that crashes starts again, and shows for a while.
func TestWatchdog_A82_ACrashShowsForAWhile(t *testing.T) {
	w, _, pass := timed()
	look := func(crashes int64) diagnosis {
		s := well()
		s.partner(func(l *laneSight) { l.status.Crashes = crashes })
		return w.judge(s)
	}
	require.Equal(t, healthy, look(0).State)
	require.Equal(t, []string{"worker_crashed"}, codes(look(1)))
	pass(recentCrash - 1)
	require.Equal(t, []string{"worker_crashed"}, codes(look(1)))
	pass(1)
	require.Equal(t, healthy, look(1).State)
	require.Equal(t, []string{"worker_crashed"}, codes(look(2)))
}

// Errors that were joined have a line each: what people read of a part is one.
func TestComponent_ItsErrorIsOneLine(t *testing.T) {
	t.Parallel()
	c := newComponent(false, errors.Join(context.DeadlineExceeded, errors.New("conn closed")).Error())
	require.Equal(t, "context deadline exceeded; conn closed", *c.Error)
}
