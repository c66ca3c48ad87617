package subscription_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/subscription"
)

// long ago is when old was last seen.
var longAgo = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// leave leaves n inbox rows of a subscription, and something in every other table,
// last seen at some time.
func leave(w *world, name string, n int, at time.Time) {
	w.t.Helper()
	then := dbtime.Value(w.provider.DB().Dialect(), at)
	w.exec("INSERT INTO inbox (subscription, message_id, processed_at) WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ?) SELECT ?, 'm-' || n, ? FROM n", n, name, then)
	w.exec("INSERT INTO inbox_attempts (subscription, message_id, attempts) VALUES (?0, 'a', 1), (?0, 'b', 1)", name)
	w.exec("INSERT INTO inbox_marks (subscription, partition, source) VALUES (?0, '0', 's'), (?0, '1', 's')", name)
	w.exec("INSERT INTO subscription_evictions (subscription, run, due_at) VALUES (?, 'r', ?)", name, then)
	w.exec("INSERT INTO subscription_runs (subscription, run, started_at, seen_at) VALUES (?0, 'r', ?1, ?1)", name, then)
	w.exec("INSERT INTO subscription_uptime (subscription, up_from, up_until) VALUES (?, ?, ?)", name, dbtime.Value(w.provider.DB().Dialect(), at.Add(-time.Hour)), then)
	keep(w, keptRow{subscription: name, status: "replayed"}, keptRow{subscription: name, status: "discarded"})
}

// tables are those that have rows by subscription, as the database knows them.
func (w *world) tables() (names []string) {
	w.t.Helper()
	query := "SELECT m.name FROM sqlite_master AS m, pragma_table_info(m.name) AS c WHERE m.type = 'table' AND c.name = 'subscription' ORDER BY 1"
	if w.isPostgres() {
		query = "SELECT table_name FROM information_schema.columns WHERE table_schema = current_schema() AND column_name = 'subscription' ORDER BY 1"
	}
	require.NoError(w.t, w.provider.Reader().NewRaw(query).Scan(w.t.Context(), &names))
	return names
}

// B14: all that a database keeps of a subscription that is no more is removed, in
// every table that has a subscription, and of no other one; who did it is on record.
func TestRetire_B14_LeavesNothing(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		leave(w, "old", 2500, longAgo)
		leave(w, "other", 3, longAgo)
		counts := map[string]int64{
			"inbox": 2500, "inbox_attempts": 2, "inbox_marks": 2, "subscription_evictions": 1, "subscription_runs": 1, "subscription_uptime": 1, "dead_letters": 2,
		}
		require.Len(t, w.tables(), len(counts)+1, "all but the record; a table that is new has to be retired, too: %v", w.tables())
		count := func(table, name string) int {
			return w.count("SELECT count(*) FROM "+table+" WHERE subscription = ?", name)
		}
		r, err := subscription.Retire(t.Context(), w.provider, "old", subscription.RetireOptions{DryRun: true})
		require.NoError(t, err)
		require.Equal(t, subscription.Retired{Rows: counts}, r)
		require.Equal(t, 2500, count("inbox", "old"))

		_, err = subscription.Retire(t.Context(), w.provider, "old", subscription.RetireOptions{})
		require.ErrorContains(t, err, "Actor is missing")
		_, err = subscription.Retire(t.Context(), w.provider, "", subscription.RetireOptions{Actor: "ada"})
		require.ErrorContains(t, err, "name of the subscription is missing")
		var told []int64
		r, err = subscription.Retire(t.Context(), w.provider, "old", subscription.RetireOptions{Actor: "ada", Progress: func(n int64) { told = append(told, n) }})
		require.NoError(t, err)
		require.NotZero(t, r.Action)
		require.Equal(t, subscription.Retired{Rows: counts, Action: r.Action}, r)
		require.Equal(t, []int64{2, 4, 6, 1006, 2006, 2506, 2507, 2508, 2509}, told, "a thousand rows a transaction")
		for _, table := range w.tables() {
			if table == "dead_letter_actions" {
				continue
			}
			require.Zero(t, count(table, "old"), table)
			require.NotZero(t, count(table, "other"), table)
		}
		actions, err := subscription.NewDeadLetters(w.provider).Actions(t.Context(), 10)
		require.NoError(t, err)
		require.Len(t, actions, 1)
		require.Equal(t, []any{"ada", "retire", "old", int64(2509)}, []any{actions[0].Actor, actions[0].Action, actions[0].Subscription, actions[0].Messages})

		// Again: nothing is left to do, and that leaves no trace.
		r, err = subscription.Retire(t.Context(), w.provider, "old", subscription.RetireOptions{Actor: "ada"})
		require.NoError(t, err)
		require.Zero(t, r.Total()+r.Action)
	})
}

// B14: what was seen within the hour may still run, and what is open has yet to
// take effect.
func TestRetire_B14_IsRefused(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		retire := func(o subscription.RetireOptions) (subscription.Retired, error) {
			o.Actor = "ada"
			return subscription.Retire(t.Context(), w.provider, "old", o)
		}
		leave(w, "old", 5, longAgo)
		recent := bun.Safe(dbtime.In(w.provider.DB().Dialect(), -50*time.Minute))
		then := dbtime.Value(w.provider.DB().Dialect(), longAgo)
		for _, seen := range []string{"subscription_uptime SET up_until", "subscription_runs SET seen_at"} {
			w.exec("UPDATE "+seen+" = ?", recent)
			for _, o := range []subscription.RetireOptions{{}, {Discard: true}, {DryRun: true}} {
				_, err := retire(o)
				require.ErrorContains(t, err, "must be gone for an hour: stop all processes that run it")
			}
			w.exec("UPDATE "+seen+" = ?", then)
		}
		keep(w, keptRow{subscription: "old"}, keptRow{subscription: "old", status: "held"})
		_, err := retire(subscription.RetireOptions{})
		require.ErrorContains(t, err, "2 of its dead letters are open, and would never take effect: see them with waybill dead-letters list --subscription old, and give them up with --discard")
		require.Equal(t, 5, w.inbox())
		r, err := retire(subscription.RetireOptions{Discard: true})
		require.NoError(t, err)
		require.EqualValues(t, 2, r.Open)
		require.EqualValues(t, 4, r.Rows["dead_letters"])
		require.Zero(t, w.inbox()+w.deadLetters())
	})
}

// B14: ended half-way, what is gone is on record; a subscription that came back
// meanwhile keeps what it has; the next call goes on.
func TestRetire_B14_EndsHalfWay(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		leave(w, "old", 1500, longAgo)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r, err := subscription.Retire(ctx, w.provider, "old", subscription.RetireOptions{Actor: "ada", Progress: func(n int64) {
			if n > 1000 {
				cancel()
			}
		}})
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, "with 1006 rows removed; run it again for the others")
		require.EqualValues(t, 1006, r.Total())
		require.Equal(t, 500, w.inbox())

		back := func(int64) {
			w.exec("UPDATE subscription_runs SET seen_at = ?", bun.Safe(dbtime.Now(w.provider.DB().Dialect())))
		}
		keep(w, keptRow{subscription: "old", status: "replayed"})
		_, err = subscription.Retire(t.Context(), w.provider, "old", subscription.RetireOptions{Actor: "ada", Progress: back})
		require.ErrorContains(t, err, "it was seen at")
		require.Equal(t, 500, w.inbox())

		w.exec("UPDATE subscription_runs SET seen_at = ?", dbtime.Value(w.provider.DB().Dialect(), longAgo))
		r, err = subscription.Retire(t.Context(), w.provider, "old", subscription.RetireOptions{Actor: "ada"})
		require.NoError(t, err)
		require.Equal(t, map[string]int64{"inbox": 500, "subscription_evictions": 1, "subscription_runs": 1, "subscription_uptime": 1}, r.Rows)
		require.Equal(t, 1006+1+503, w.count("SELECT CAST(sum(messages) AS bigint) FROM dead_letter_actions"))
	})
}

// Of two at once, each goes on until nothing is left: the other one may end in its middle.
func TestRetire_B14_BesideAnotherOneThatEnds(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		if !w.isPostgres() {
			return // One at a time writes.
		}
		leave(w, "old", 2500, longAgo)
		other, err := w.provider.DB().BeginTx(t.Context(), nil)
		require.NoError(t, err)
		_, err = other.ExecContext(t.Context(), "DELETE FROM inbox WHERE message_id IN (SELECT message_id FROM inbox ORDER BY message_id LIMIT 1200)")
		require.NoError(t, err)
		done := make(chan error, 1)
		var r subscription.Retired
		go func() {
			var err error
			r, err = subscription.Retire(t.Context(), w.provider, "old", subscription.RetireOptions{Actor: "ada"})
			done <- err
		}()
		waittest.Until(t, func() bool {
			return w.count("SELECT count(*) FROM pg_locks WHERE NOT granted AND pid IN (SELECT pid FROM pg_locks WHERE relation = 'inbox'::regclass)") > 0
		}, "it waits for the other one")
		require.NoError(t, other.Commit())
		require.NoError(t, <-done)
		require.EqualValues(t, 1300, r.Rows["inbox"])
		require.Zero(t, w.count("SELECT count(*) FROM inbox"))
	})
}

// B14: the database's own list has every subscription that left anything, also one
// of another program, with what it left.
func TestList_B14_WhatTheDatabaseKnows(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		list := func() []subscription.Listed {
			all, err := subscription.List(t.Context(), w.provider.Reader())
			require.NoError(t, err)
			return all
		}
		require.Equal(t, []subscription.Listed{}, list())
		leave(w, "old", 10_001, longAgo)
		keep(w, keptRow{subscription: "letters", at: longAgo}, keptRow{subscription: "letters", status: "held", at: keptAt})
		w.exec("INSERT INTO inbox_marks (subscription, partition, source) VALUES ('marks', '0', 's')")
		w.start(w.stream(), w.broker)
		w.publish(placed("o-1", ""))
		w.until(func() bool {
			all := list()
			return len(all) == 4 && all[3].Running && all[3].Joined && all[3].Inbox == 1
		}, "it is seen")
		all := list()
		require.WithinDuration(t, time.Now(), *all[3].LastSeen, time.Minute)
		all[3].LastSeen = nil
		require.Equal(t, []subscription.Listed{
			{Name: "letters", LastSeen: &longAgo, DeadLetters: 2, Open: 2},
			{Name: "marks"},
			{Name: "old", LastSeen: &longAgo, Inbox: 10_000, InboxMore: true, DeadLetters: 2},
			{Name: "shipping", Running: true, Joined: true, Inbox: 1},
		}, all)
		_, err := subscription.Retire(t.Context(), w.provider, "shipping", subscription.RetireOptions{Actor: "ada", Discard: true})
		require.ErrorContains(t, err, fmt.Sprintf("retire %q: it was seen at", "shipping"))
	})
}

// The streams of a process share dead letters under its name: that name was seen when
// one of them was, and with a stream go the letters that came by it.
func TestRetire_StreamsOfAProcess(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		stream := "library.lending.t" // by the topic of what is kept
		leave(w, stream, 1, longAgo)
		keep(w, keptRow{subscription: "library.lending", status: "parked"}, keptRow{subscription: "library.lending", status: "replayed"})
		w.exec("INSERT INTO subscription_runs (subscription, run) VALUES (?, 'now')", stream)
		list, err := subscription.List(t.Context(), w.provider.Reader())
		require.NoError(t, err)
		require.Len(t, list, 2)
		require.Equal(t, "library.lending", list[0].Name)
		require.True(t, list[0].Running)
		require.Equal(t, []int64{2, 1}, []int64{list[0].DeadLetters, list[0].Open})
		require.WithinDuration(t, time.Now(), *list[0].LastSeen, time.Minute)
		for _, name := range []string{"library.lending", stream} {
			_, err = subscription.Retire(t.Context(), w.provider, name, subscription.RetireOptions{DryRun: true, Discard: true})
			require.ErrorContains(t, err, "must be gone for an hour", name)
		}
		w.exec("DELETE FROM subscription_runs WHERE run = 'now'")
		for _, name := range []string{"library.lending", stream} {
			_, err = subscription.Retire(t.Context(), w.provider, name, subscription.RetireOptions{DryRun: true})
			require.ErrorContains(t, err, "1 of its dead letters are open, and would never take effect: see them with waybill dead-letters list --subscription library.lending,", name)
		}
		r, err := subscription.Retire(t.Context(), w.provider, stream, subscription.RetireOptions{Actor: "ada", Discard: true})
		require.NoError(t, err)
		require.Equal(t, int64(1), r.Open)
		require.Equal(t, int64(4), r.Rows["dead_letters"])
		require.Zero(t, w.count("SELECT count(*) FROM dead_letters"))
	})
}

// A letter that is early needs nobody before its time, and says then what it waits for.
func TestCountEarly(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		keep(w, keptRow{subscription: "a", status: "early", reason: "early", err: "no LoanPlaced"}, keptRow{subscription: "b", status: "early", reason: "early"}, keptRow{subscription: "a", status: "parked"})
		w.exec("UPDATE dead_letters SET due_at = ? WHERE subscription = 'a'", dbtime.Value(w.provider.DB().Dialect(), longAgo))
		w.exec("UPDATE dead_letters SET due_at = ? WHERE subscription = 'b'", dbtime.Value(w.provider.DB().Dialect(), time.Now().Add(time.Hour)))
		early, err := subscription.CountEarly(t.Context(), w.provider.Reader())
		require.NoError(t, err)
		require.Equal(t, map[string]subscription.EarlyLetters{"a": {Count: 1, Error: "no LoanPlaced"}}, early)
		open, err := subscription.CountDeadLetters(t.Context(), w.provider.Reader())
		require.NoError(t, err)
		require.Equal(t, map[string]int64{"a": 2}, open)
		waiting, err := subscription.CountWaiting(t.Context(), w.provider.Reader())
		require.NoError(t, err)
		require.Equal(t, map[string]int64{"b": 1}, waiting)
	})
}
