package subscription_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/subscription"
)

const (
	day       = 24 * time.Hour
	retention = 30 * day
)

// evictor removes at most 20 rows at a time, once an hour.
func (w *world) evictor(run string, keep time.Duration) *subscription.Evictor {
	return w.evictorEvery(run, keep, time.Hour)
}

func (w *world) evictorEvery(run string, keep, every time.Duration) *subscription.Evictor {
	return subscription.NewEvictor(w.provider, "shipping", run, keep, every, 20, slog.New(slog.NewTextHandler(w.logs, nil)), func(err error) { require.NoError(w.t, err) })
}

func (w *world) turn(e *subscription.Evictor) {
	w.t.Helper()
	require.NoError(w.t, e.Learn(w.t.Context()))
	require.NoError(w.t, e.Turn(w.t.Context()))
}

// fillInbox puts n messages into a subscription's inbox that were handled some time
// ago.
func (w *world) fillInbox(name, prefix string, n int, ago time.Duration) {
	w.t.Helper()
	w.exec("INSERT INTO inbox (subscription, message_id, processed_at) WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)"+
		" SELECT ?, ? || n, ? FROM numbers", n, name, prefix, w.in(-ago))
}

// up notes that the subscription consumed, from and until so long ago.
func (w *world) up(name string, from, until time.Duration) {
	w.t.Helper()
	w.exec("INSERT INTO subscription_uptime (subscription, up_from, up_until) VALUES (?, ?, ?)", name, w.in(-from), w.in(-until))
}

func (w *world) inboxOf(name string) int {
	return w.count("SELECT count(*) FROM inbox WHERE subscription = ?", name)
}

// F-66, S2-38: what was handled before as much uptime as the retention is goes, step
// by step; nothing else does.
func TestEvict_F_66_S2_38(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.fillInbox("shipping", "old", 100, 52*day)
		w.fillInbox("shipping", "young", 100, 48*day)
		w.fillInbox("shipping", "new", 10, 0)
		w.fillInbox("billing", "old", 100, 52*day)
		for name, ago := range map[string]time.Duration{"old": 52 * day, "young": 48 * day} {
			w.exec("INSERT INTO inbox_attempts (subscription, message_id, attempts, last_at) VALUES ('shipping', ?, 1, ?), ('billing', ?, 1, ?)", name, w.in(-ago), name, w.in(-ago))
		}
		e := w.evictor("a", retention)
		w.up("billing", 100*day, 0)
		w.up("shipping", 10*day, 0)
		w.turn(e)
		require.Equal(t, 210, w.inboxOf("shipping"), "it is up for ten days only")
		require.False(t, e.Beyond("m", time.Now().Add(-1000*day)), "nothing was ever removed")

		w.up("shipping", 100*day, 90*day)
		w.up("shipping", 60*day, 30*day)
		w.turn(e)
		require.Equal(t, 210, w.inboxOf("shipping"), "it was done within the hour")
		w.exec("UPDATE subscription_evictions SET due_at = ?", w.in(-time.Second))
		w.turn(e)
		require.Equal(t, 110, w.inboxOf("shipping"), "20 days down are not counted")
		require.Zero(t, w.count("SELECT count(*) FROM inbox WHERE subscription = 'shipping' AND message_id LIKE 'old%'"))
		require.Equal(t, 100, w.inboxOf("billing"))
		require.Equal(t, 3, w.count("SELECT count(*) FROM inbox_attempts"))
		require.Zero(t, w.count("SELECT count(*) FROM inbox_attempts WHERE subscription = 'shipping' AND message_id = 'old'"))
		require.Equal(t, 2, w.count("SELECT count(*) FROM subscription_uptime WHERE subscription = 'shipping'"), "older intervals are of no use")

		// Whoever has the next turn goes on.
		w.exec("UPDATE subscription_uptime SET up_from = ? WHERE up_from > ?", w.in(-13*day), w.in(-11*day))
		w.exec("UPDATE subscription_evictions SET due_at = ?", w.in(day)) // by a wrong clock
		w.turn(w.evictor("b", retention))
		require.Equal(t, 10, w.inboxOf("shipping"))
	})
}

// F-66: age is counted while the subscription was up, by one of its runs or by
// several.
func TestEvict_F_66_Cutoff(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		on := func(day float64) time.Time { return begin.Add(time.Duration(day * 24 * float64(time.Hour))) }
		now := time.Since(begin).Hours() / 24
		future := now + 100
		for name, c := range map[string]struct {
			intervals [][2]float64
			cutoff    float64 // -1: none
		}{
			"never up":             {nil, -1},
			"too short":            {[][2]float64{{1, 9.9}}, -1},
			"as long":              {[][2]float64{{1, 11}}, 1},
			"longer":               {[][2]float64{{1, 13}}, 3},
			"down in between":      {[][2]float64{{1, 7}, {20, 28}}, 5},
			"a long stop":          {[][2]float64{{1, 11.5}, {200, 200}}, 1.5},
			"both at once":         {[][2]float64{{1, 7}, {6, 14}}, 4},
			"one inside the other": {[][2]float64{{1, 9}, {3, 4}, {20, 23}}, -1},
			"up to the future":     {[][2]float64{{1, 7}, {now - 1, future}}, -1},
			"from now on":          {[][2]float64{{1, 11}, {future, future + 50}}, 1},
		} {
			w.exec("DELETE FROM subscription_uptime")
			for _, i := range c.intervals {
				d := w.provider.DB().Dialect()
				w.exec("INSERT INTO subscription_uptime (subscription, up_from, up_until) VALUES ('shipping', ?, ?)", dbtime.Value(d, on(i[0])), dbtime.Value(d, on(i[1])))
			}
			at, ok, err := w.evictor("a", 10*day).Cutoff(t.Context())
			require.NoError(t, err)
			require.Equal(t, c.cutoff >= 0, ok, name)
			if ok {
				require.Equal(t, on(c.cutoff), at, name)
			}
		}
	})
}

// A step of a run that has lost its turn, as it was suspended, does nothing.
func TestEvict_OneAtATime(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.up("shipping", 31*day, 0)
		a, b := w.evictor("a", retention), w.evictor("b", retention)
		w.turn(a)
		w.fillInbox("shipping", "old", 10, 40*day)
		w.exec("UPDATE subscription_evictions SET due_at = ?", w.in(-time.Second))
		w.turn(b)
		require.Zero(t, w.inbox())
		w.fillInbox("shipping", "old", 10, 40*day)
		_, err := a.Step(t.Context(), time.Now(), 5)
		require.ErrorContains(t, err, "another run evicts")
		require.Equal(t, 10, w.inbox())
		n, err := b.Step(t.Context(), time.Now(), 5)
		require.NoError(t, err)
		require.Zero(t, n, "it doesn't look again at what is gone")
	})
}

// S0-19: a message from before what the inbox knows may be a duplicate. It is
// counted, and the log tells.
func TestBeyond_S0_19(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.up("shipping", 40*day, 0)
		w.fillInbox("shipping", "old", 10, 32*day)
		e, other := w.evictor("a", retention), w.evictor("b", retention)
		early, late := time.Now().Add(-31*day), time.Now().Add(-29*day)
		require.False(t, e.Beyond("m", early))
		w.turn(e)
		require.Zero(t, w.inbox())
		require.False(t, e.Beyond("m1", late))
		require.False(t, e.Beyond("m2", time.Time{}), "nobody knows when it was sent")
		require.Empty(t, w.logs.lines("Stream.InboxRetention"))
		require.True(t, e.Beyond("m3", early))
		require.True(t, e.Beyond("m4", early))
		require.EqualValues(t, 2, e.Passed())
		require.Len(t, w.logs.lines("Stream.InboxRetention"), 1)
		require.Len(t, w.logs.lines("id=m3"), 1)

		require.False(t, other.Beyond("m5", early))
		require.NoError(t, other.Learn(t.Context()))
		require.True(t, other.Beyond("m5", early), "other runs know of it")
		later := w.evictor("c", -1)
		require.NoError(t, later.Learn(t.Context()))
		require.True(t, later.Beyond("m5", early), "nothing comes back by a longer retention")
	})
}

// F-66: while messages are handled, two runs evict in turns.
func TestEvict_F_66_WhileOthersInsert(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.up("shipping", 40*day, 0)
		w.fillInbox("shipping", "old", 300, 35*day)
		w.fillInbox("billing", "old", 300, 35*day)
		var stops []func()
		for _, run := range []string{"a", "b"} {
			stop := w.evictorEvery(run, retention, 200*time.Millisecond).Start(t.Context())
			t.Cleanup(stop)
			stops = append(stops, stop)
		}
		keeper := subscription.NewEvictor(w.provider, "billing", "c", -1, time.Millisecond, 7, nil, func(err error) { require.NoError(t, err) })
		w.up("billing", 40*day, 0)
		stops = append(stops, keeper.Start(t.Context()))
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				for n := range 50 {
					w.exec("INSERT INTO inbox (subscription, message_id) VALUES ('shipping', ?)", fmt.Sprintf("new-%d-%d", i, n))
				}
			})
		}
		wg.Wait()
		w.until(func() bool { return w.inboxOf("shipping") == 200 }, "all old ones go")
		for _, stop := range stops {
			stop()
		}
		require.Equal(t, 200, w.count("SELECT count(*) FROM inbox WHERE message_id LIKE 'new%'"))
		require.Equal(t, 300, w.inboxOf("billing"), "what is kept for ever")
		require.Zero(t, w.count("SELECT count(*) FROM subscription_evictions WHERE subscription = 'billing'"))
	})
}

// A stop doesn't wait for an eviction, which goes on with the next run.
func TestEvict_StopsAtOnce(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.up("shipping", 40*day, 0)
		w.fillInbox("shipping", "old", 2_000, 35*day)
		// A turn may last for minutes, 20 rows at a time; and the first comes soon.
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		e := w.evictor("a", retention)
		go func() { ended <- e.Turn(ctx) }()
		w.until(func() bool { return w.inbox() < 2_000 }, "it evicts")
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
		require.Positive(t, w.inbox())
	})
}

// The rows of other subscriptions are not looked at, however many they are.
func TestEvict_FindsRowsByTheIndex(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		n := 5000
		if w.provider.DB().Dialect().Name() == dialect.SQLite {
			n = 100 // its plans don't depend on the number
		}
		for i := range 4 {
			w.fillInbox(fmt.Sprintf("sub-%d", i), "old", n, 35*day)
		}
		query := "EXPLAIN SELECT message_id FROM inbox WHERE subscription = 'sub-2' AND processed_at >= ? AND processed_at < ? ORDER BY processed_at LIMIT 500"
		d := w.provider.DB().Dialect()
		if d.Name() == dialect.SQLite {
			query = strings.Replace(query, "EXPLAIN", "EXPLAIN QUERY PLAN", 1)
		} else {
			w.exec("ANALYZE inbox")
		}
		rows, err := w.provider.DB().QueryContext(t.Context(), query, dbtime.Value(d, time.Time{}), dbtime.Value(d, time.Now()))
		require.NoError(t, err)
		defer func() { require.NoError(t, rows.Close()) }()
		columns, err := rows.Columns()
		require.NoError(t, err)
		var plan string
		for rows.Next() {
			values := make([]any, len(columns))
			for i := range values {
				values[i] = new(any)
			}
			require.NoError(t, rows.Scan(values...))
			for _, v := range values {
				plan += fmt.Sprintln(*v.(*any))
			}
		}
		require.NoError(t, rows.Err())
		require.Contains(t, plan, "inbox_processed_at")
		require.NotContains(t, plan, "Sort")
		require.NotContains(t, plan, "TEMP B-TREE")
	})
}

// S0-19: a runner handles what comes from before its horizon, and says how much that
// is.
func TestRunner_S0_19_BeyondHorizon(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.publish(orders(3)...) // sent in January 2026
		r, stop := w.start(w.stream(), w.broker)
		w.until(w.acknowledged("shipping"), "they are handled")
		require.Zero(t, r.Status().BeyondHorizon, "a new subscription reads an old topic")
		stop()

		w.exec("INSERT INTO subscription_evictions (subscription, run, due_at, evicted) VALUES ('shipping', 'a', ?, ?)", w.in(time.Hour), w.in(0))
		r, stop = w.start(w.stream(), w.broker)
		w.until(func() bool { return r.Knows() }, "it learns what was evicted")
		w.publish(orders(2)...)
		w.publish(message("unknown", "Ordering.OrderPaid.v1", "o-1", "{}"))
		w.until(w.acknowledged("shipping"), "they are handled")
		stop()
		require.EqualValues(t, 2, r.Status().Handled)
		require.EqualValues(t, 2, r.Status().BeyondHorizon)
		require.Len(t, w.logs.lines("Stream.InboxRetention"), 1)
	})
}
