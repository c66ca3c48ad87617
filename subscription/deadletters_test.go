package subscription_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// keptRow is a row of dead_letters, as a runner writes it. Empty fields get a
// value.
type keptRow struct {
	subscription, key, typ, err, errType, reason, status string
	at                                                   time.Time // of the last attempt
	skips                                                bool      // its subscription holds no keys
	taken                                                bool      // a runner is at it
}

var keptAt = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// keep inserts rows, in their order, and returns their ids.
func keep(w *world, rows ...keptRow) []string {
	w.t.Helper()
	or := func(s, otherwise string) string {
		if s == "" {
			return otherwise
		}
		return s
	}
	ids := make([]string, len(rows))
	d := w.provider.DB().Dialect()
	for i, r := range rows {
		ids[i] = uuid.Must(uuid.NewV7()).String()
		if r.at.IsZero() {
			r.at = keptAt
		}
		taken := bun.Safe("NULL")
		if r.taken {
			taken = bun.Safe(dbtime.In(d, time.Minute))
		}
		reason := "failed"
		if r.status == "held" {
			reason = "held"
		}
		w.exec("INSERT INTO dead_letters (id, subscription, topic, partition_key, key_id, message_id, message_type, body, headers, error, error_type, reason, attempts, first_at, last_at, status, holds, taken_until)"+
			" VALUES (?, ?, 't', ?, ?, ?, ?, ?, '{}', ?, ?, ?, 8, ?, ?, ?, ?, ?)",
			ids[i], or(r.subscription, "shipping"), or(r.key, "k"), or(r.key, "k"), "m-"+ids[i], bun.NullZero(r.typ), []byte("b"), or(r.err, "no"), bun.NullZero(r.errType),
			or(r.reason, reason), dbtime.Value(d, r.at.Add(-time.Minute)), dbtime.Value(d, r.at), or(r.status, "parked"), !r.skips, taken)
	}
	return ids
}

// keepMany inserts n rows that are parked, each of a key of its own.
func keepMany(w *world, n int) {
	w.t.Helper()
	id := "gen_random_uuid()"
	if w.provider.DB().Dialect().Name() == dialect.SQLite {
		id = "lower(hex(randomblob(16)))"
	}
	w.exec("INSERT INTO dead_letters (id, subscription, topic, partition_key, key_id, message_id, headers, error, reason, attempts, first_at, last_at, holds)"+
		" WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ?) SELECT "+id+", 'shipping', 't', n, n, n, '{}', 'no', 'failed', 8, ?, ?, TRUE FROM n",
		n, dbtime.Value(w.provider.DB().Dialect(), keptAt), dbtime.Value(w.provider.DB().Dialect(), keptAt))
}

// statuses are those of rows with these ids.
func statuses(w *world, ids []string) []string {
	w.t.Helper()
	all := make([]string, len(ids))
	for i, id := range ids {
		require.NoError(w.t, w.provider.Reader().NewRaw("SELECT status FROM dead_letters WHERE id = ?", id).Scan(context.Background(), &all[i]))
	}
	return all
}

func idsOf(list subscription.DeadLetterList) []string {
	ids := []string{}
	for _, l := range list.Letters {
		ids = append(ids, l.ID)
	}
	return ids
}

// C-14, C-16, C-20: each field of the filter chooses, also beside rows that nobody
// can read.
func TestDeadLetters_ListByFilter_C_14_C_16_C_20(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		s := subscription.NewDeadLetters(w.provider)
		require.NoError(t, s.Check(t.Context()))
		ids := keep(
			w,
			keptRow{key: "k-1", typ: "A.v1", err: "no 100% of it", errType: "*errors.errorString"},
			keptRow{key: "k-1", typ: "B.v1", status: "held"},
			keptRow{key: "k-2", typ: "A.v1", status: "replay", at: keptAt.Add(time.Hour)},
			keptRow{reason: "undecodable", err: "it's no message"},
			keptRow{status: "replayed"},
			keptRow{status: "discarded"},
			keptRow{subscription: "billing", typ: "A.v1"},
		)
		for name, c := range map[string]struct {
			filter subscription.DeadLetterFilter
			want   []int
		}{
			"open ones":     {subscription.DeadLetterFilter{}, []int{0, 1, 2, 3, 6}},
			"subscription":  {subscription.DeadLetterFilter{Subscription: "shipping"}, []int{0, 1, 2, 3}},
			"ids":           {subscription.DeadLetterFilter{IDs: []string{strings.ToUpper(ids[3]), ids[0], ids[4]}}, []int{0, 3}},
			"key":           {subscription.DeadLetterFilter{Key: "k-1"}, []int{0, 1}},
			"type":          {subscription.DeadLetterFilter{Type: "A.v1", Subscription: "shipping"}, []int{0, 2}},
			"error":         {subscription.DeadLetterFilter{Error: "100% "}, []int{0}},
			"a quote":       {subscription.DeadLetterFilter{Error: "it's"}, []int{3}},
			"error type":    {subscription.DeadLetterFilter{ErrorType: "*errors.errorString"}, []int{0}},
			"reason":        {subscription.DeadLetterFilter{Reason: "undecodable"}, []int{3}},
			"a status":      {subscription.DeadLetterFilter{Statuses: []subscription.DeadLetterStatus{subscription.DeadLetterReplay}}, []int{2}},
			"past ones":     {subscription.DeadLetterFilter{Statuses: []subscription.DeadLetterStatus{"replayed", "discarded"}}, []int{4, 5}},
			"from":          {subscription.DeadLetterFilter{From: keptAt.Add(time.Hour)}, []int{2}},
			"until":         {subscription.DeadLetterFilter{Until: keptAt.Add(time.Second), Subscription: "shipping"}, []int{0, 1, 3}},
			"until exactly": {subscription.DeadLetterFilter{Until: keptAt}, []int{}},
		} {
			want := []string{}
			for _, i := range c.want {
				want = append(want, ids[i])
			}
			list, err := s.List(t.Context(), c.filter, subscription.DeadLetterPage{})
			require.NoError(t, err, name)
			require.Equal(t, want, idsOf(list), name)
			require.EqualValues(t, len(want), list.Total, name)
		}
		_, err := s.List(t.Context(), subscription.DeadLetterFilter{IDs: []string{"17"}}, subscription.DeadLetterPage{})
		require.ErrorContains(t, err, `"17" is not the id of a dead letter, which is a UUID`)
	})
}

// C-17: pages follow one another, whatever is parked meanwhile, and say how much
// there is.
func TestDeadLetters_PagingAndTotals_C_17(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		s := subscription.NewDeadLetters(w.provider)
		ids := keep(w, make([]keptRow, 5)...)
		page := subscription.DeadLetterPage{Limit: 2}
		for i, want := range [][]string{ids[:2], ids[2:4], ids[4:]} {
			list, err := s.List(t.Context(), subscription.DeadLetterFilter{}, page)
			require.NoError(t, err)
			require.Equal(t, want, idsOf(list))
			require.EqualValues(t, 5, list.Total)
			require.Equal(t, i == 2, list.Next == 0)
			page.After = list.Next
			w.exec("UPDATE dead_letters SET status = 'discarded' WHERE id = ?", want[0])
			keep(w, keptRow{subscription: "billing", status: "discarded"})
			w.exec("UPDATE dead_letters SET status = 'parked' WHERE id = ?", want[0])
		}
		list, err := s.List(t.Context(), subscription.DeadLetterFilter{}, subscription.DeadLetterPage{After: 1 << 40})
		require.NoError(t, err)
		require.Equal(t, subscription.DeadLetterList{Letters: []subscription.DeadLetter{}, Total: 5}, list)
	})
}

// A72, C-12, C-13: all that was kept is shown, and what is unknown is empty.
func TestDeadLetters_Show_A72_C_12_C_13(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		s := subscription.NewDeadLetters(w.provider)
		ids := keep(w, keptRow{}, keptRow{status: "held"}, keptRow{status: "held"}, keptRow{status: "held"}, keptRow{key: "other"}, keptRow{status: "replayed"}, keptRow{subscription: "billing"})
		d := w.provider.DB().Dialect()
		w.exec("UPDATE dead_letters SET message_type = 'A.v1', body = ?, headers = ?, error = 'boom', error_type = '*x.Error', stack = 'main.go:1', status = 'replay', replays = 2, due_at = ? WHERE id = ?",
			[]byte{0, 0xff}, `{"a":"b ? '"}`, dbtime.Value(d, keptAt.Add(time.Hour)), ids[1])
		due := keptAt.Add(time.Hour)
		got, err := s.Show(t.Context(), ids[1])
		require.NoError(t, err)
		require.NotZero(t, got.Seq)
		got.Seq = 0
		require.Equal(t, &subscription.DeadLetterDetails{
			DeadLetter: subscription.DeadLetter{
				ID: ids[1], Subscription: "shipping", Topic: "t", Key: "k", MessageID: "m-" + ids[1], Type: "A.v1", Status: "replay", Reason: "held",
				Error: "boom", ErrorType: "*x.Error", Attempts: 8, FirstAt: keptAt.Add(-time.Minute), LastAt: keptAt, Holds: true, Replays: 2, DueAt: &due,
			},
			Body: []byte{0, 0xff}, Headers: map[string]string{"a": "b ? '"}, Stack: "main.go:1",
			Before: 1, Behind: 2, Head: ids[0],
		}, got)

		w.exec("UPDATE dead_letters SET body = NULL WHERE id = ?", ids[4])
		got, err = s.Show(t.Context(), ids[4])
		require.NoError(t, err)
		require.Nil(t, got.Body)
		require.Nil(t, got.DueAt)
		require.Equal(t, []any{"", "", "", int64(0), int64(0), ""}, []any{got.Type, got.ErrorType, got.Stack, got.Before, got.Behind, got.Head})

		_, err = s.Show(t.Context(), uuid.NewString())
		require.ErrorIs(t, err, subscription.ErrNoDeadLetter)
		_, err = s.Show(t.Context(), "x")
		require.ErrorContains(t, err, "not the id of a dead letter")
	})
}

// C-17: what is alike is counted, in a range of time.
func TestDeadLetters_Summary_C_17(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		s := subscription.NewDeadLetters(w.provider)
		keep(
			w,
			keptRow{typ: "B.v1", errType: "e"}, keptRow{typ: "A.v1", errType: "e"}, keptRow{typ: "A.v1", errType: "e", at: keptAt.Add(time.Hour)},
			keptRow{typ: "A.v1", errType: "e", status: "replayed"}, keptRow{subscription: "billing", reason: "undecodable"},
		)
		got, err := s.Summary(t.Context(), time.Time{}, time.Time{})
		require.NoError(t, err)
		first, last := keptAt.Add(-time.Minute), keptAt.Add(time.Hour)
		require.Equal(t, []subscription.DeadLetterCount{
			{Subscription: "billing", Reason: "undecodable", Status: "parked", Count: 1, FirstAt: first, LastAt: keptAt},
			{Subscription: "shipping", Type: "A.v1", Reason: "failed", ErrorType: "e", Status: "parked", Count: 2, FirstAt: first, LastAt: last},
			{Subscription: "shipping", Type: "A.v1", Reason: "failed", ErrorType: "e", Status: "replayed", Count: 1, FirstAt: first, LastAt: keptAt},
			{Subscription: "shipping", Type: "B.v1", Reason: "failed", ErrorType: "e", Status: "parked", Count: 1, FirstAt: first, LastAt: keptAt},
		}, got)
		got, err = s.Summary(t.Context(), keptAt.Add(time.Second), last)
		require.NoError(t, err)
		require.Empty(t, got)
		got, err = s.Summary(t.Context(), last, last.Add(time.Second))
		require.NoError(t, err)
		require.Len(t, got, 1)
	})
}

// A75, C-17, F-78: only what the filter chooses is marked, and only of its
// subscription; what is held is left to follow; who asked is on record, and a dry
// run says the same and does nothing.
func TestDeadLetters_Replay_A75_C_17_F_78(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		s := subscription.NewDeadLetters(w.provider)
		ids := keep(
			w,
			keptRow{key: "k-1", typ: "A.v1", taken: true}, // taken_until is of its last attempt
			keptRow{key: "k-1", typ: "A.v1", status: "held"},
			keptRow{key: "k-1", typ: "B.v1", status: "held"},
			keptRow{key: "k-2", typ: "B.v1"},
			keptRow{key: "k-2", typ: "A.v1", status: "held"},
			keptRow{key: "k-3", typ: "A.v1", skips: true},
			keptRow{key: "k-4", typ: "A.v1", status: "replay"},
			keptRow{key: "k-5", typ: "A.v1", status: "replayed"},
			keptRow{key: "k-1", typ: "A.v1", subscription: "billing"},
		)
		before := statuses(w, ids)
		f := subscription.DeadLetterFilter{Subscription: "shipping", Type: "A.v1"}
		want := subscription.DeadLetterResult{
			Subscription: "shipping", Marked: 2, Skipping: 1, Following: 2, Behind: 1, Heads: []string{ids[3]}, Held: 1, Underway: 1, Past: 1, Missing: []string{},
		}
		got, err := s.Replay(t.Context(), f, subscription.ReplayOptions{DryRun: true})
		require.NoError(t, err)
		require.NotZero(t, got.UpTo)
		want.UpTo = got.UpTo
		require.Equal(t, want, got)
		require.Equal(t, before, statuses(w, ids))
		actions, err := s.Actions(t.Context(), 10)
		require.NoError(t, err)
		require.Empty(t, actions)

		got, err = s.Replay(t.Context(), f, subscription.ReplayOptions{Actor: "ada", UpTo: got.UpTo})
		require.NoError(t, err)
		require.NotZero(t, got.Action)
		want.Action = got.Action
		require.Equal(t, want, got)
		require.Equal(t, []string{"replay", "held", "held", "parked", "held", "replay", "replay", "replayed", "parked"}, statuses(w, ids))
		require.Equal(t, 2, w.count("SELECT count(*) FROM dead_letters WHERE replays = 1 AND due_at IS NULL AND taken_until IS NULL"))
		actions, err = s.Actions(t.Context(), 10)
		require.NoError(t, err)
		require.Len(t, actions, 1)
		a := actions[0]
		require.WithinDuration(t, time.Now(), a.At, time.Minute)
		require.JSONEq(t, fmt.Sprintf(`{"subscription":"shipping","type":"A.v1","up_to":%d}`, got.UpTo), string(a.Filter))
		a.At, a.Filter = time.Time{}, nil
		require.Equal(t, subscription.DeadLetterAction{ID: got.Action, Actor: "ada", Action: "replay", Subscription: "shipping", Messages: 2}, a)

		// Again: it is asked for already, and that leaves no trace.
		got, err = s.Replay(t.Context(), f, subscription.ReplayOptions{Actor: "ada"})
		require.NoError(t, err)
		require.Zero(t, got.Marked+got.Action)
		require.EqualValues(t, 3, got.Underway)
		actions, err = s.Actions(t.Context(), 10)
		require.NoError(t, err)
		require.Len(t, actions, 1)
	})
}

// C-85, F-78: a key's order is kept, however the filter chooses.
func TestDeadLetters_ReplayKeepsOrder_C_85_F_78(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		s := subscription.NewDeadLetters(w.provider)
		ids := keep(
			w,
			keptRow{key: "k", err: "one"}, keptRow{key: "k", err: "two"}, keptRow{key: "k", status: "held"}, keptRow{key: "k", err: "three"}, keptRow{key: "k", status: "held"},
			keptRow{key: "s", err: "one", skips: true}, keptRow{key: "s", err: "two", skips: true},
		)
		plan := func(f subscription.DeadLetterFilter, limit int) subscription.DeadLetterResult {
			f.Subscription = "shipping"
			r, err := s.Replay(t.Context(), f, subscription.ReplayOptions{DryRun: true, Limit: limit})
			require.NoError(t, err)
			r.Subscription, r.Missing, r.UpTo = "", nil, 0
			return r
		}
		type result = subscription.DeadLetterResult
		require.Equal(t, result{Marked: 1, Skipping: 1, Behind: 1, Heads: ids[:1]}, plan(subscription.DeadLetterFilter{Error: "two"}, 0), "one that skips has no order")
		require.Equal(t, result{Behind: 1, Heads: ids[:1]}, plan(subscription.DeadLetterFilter{IDs: ids[3:4]}, 0), "two are in its way: the first is told")
		require.Equal(t, result{Marked: 2, Following: 1, Heads: []string{}}, plan(subscription.DeadLetterFilter{IDs: ids[:2]}, 0), "the last one waits for three")
		require.Equal(t, result{Marked: 1, Behind: 1, Heads: ids[1:2]}, plan(subscription.DeadLetterFilter{IDs: []string{ids[0], ids[3]}}, 0))
		require.Equal(t, result{Marked: 3, Following: 2, Held: 1, Heads: []string{}}, plan(subscription.DeadLetterFilter{}, 3), "the last one follows though it is beyond the limit")
		require.Equal(t, result{Marked: 1, Heads: []string{}}, plan(subscription.DeadLetterFilter{}, 1))
		require.Equal(t, result{Behind: 1, Heads: ids[:1]}, plan(subscription.DeadLetterFilter{IDs: ids[2:3]}, 0), "a held one isn't replayed by itself")

		r, err := s.Replay(t.Context(), subscription.DeadLetterFilter{IDs: []string{ids[0], ids[3]}}, subscription.ReplayOptions{Actor: "ada"})
		require.NoError(t, err)
		require.EqualValues(t, 1, r.Marked)
		require.Equal(t, []string{"replay", "parked", "held", "parked"}, statuses(w, ids[:4]), "the last one waits for two, which nobody asked for")
		require.Equal(t, result{Marked: 1, Following: 1, Heads: []string{}}, plan(subscription.DeadLetterFilter{IDs: ids[1:2]}, 0), "what is in replay is in nobody's way")
	})
}

// F-78: a rate spreads the replays in the order of parking.
func TestDeadLetters_ReplayRate_F_78(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		s := subscription.NewDeadLetters(w.provider)
		keepMany(w, 1011)
		r, err := s.Replay(t.Context(), subscription.DeadLetterFilter{Subscription: "shipping"}, subscription.ReplayOptions{Actor: "ada", Rate: 4, Limit: 1010})
		require.NoError(t, err)
		require.EqualValues(t, 1010, r.Marked)
		list, err := s.List(t.Context(), subscription.DeadLetterFilter{Statuses: []subscription.DeadLetterStatus{"replay"}}, subscription.DeadLetterPage{Limit: 3000})
		require.NoError(t, err)
		require.Len(t, list.Letters, 1010)
		first := *list.Letters[0].DueAt
		require.WithinDuration(t, time.Now(), first, time.Minute)
		for i, l := range list.Letters {
			require.WithinDuration(t, first.Add(time.Duration(i)*250*time.Millisecond), *l.DueAt, 2*time.Millisecond)
		}
		for _, rate := range []float64{-1, math.NaN()} {
			_, err = s.Replay(t.Context(), subscription.DeadLetterFilter{Subscription: "shipping"}, subscription.ReplayOptions{Actor: "ada", Rate: rate})
			require.ErrorContains(t, err, "messages per second")
		}
	})
}

// C-17, C-89: what is discarded is only that; what is held behind it follows.
func TestDeadLetters_Discard_C_17_C_89(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		s := subscription.NewDeadLetters(w.provider)
		ids := keep(
			w,
			keptRow{key: "k-1"}, keptRow{key: "k-1", status: "held"}, keptRow{key: "k-1", status: "held"},
			keptRow{key: "k-2", status: "replay"}, keptRow{key: "k-3", status: "replay", taken: true}, keptRow{key: "k-4", status: "held", taken: true},
			keptRow{key: "k-5", status: "replayed"}, keptRow{key: "k-1", subscription: "billing"},
		)
		all := subscription.DeadLetterFilter{Subscription: "shipping"}
		want := subscription.DeadLetterResult{
			Subscription: "shipping", Marked: 1, Following: 2, Held: 2, Underway: 1, Busy: 2, Past: 1, Heads: []string{}, Missing: []string{},
		}
		r, err := s.Discard(t.Context(), all, subscription.DiscardOptions{DryRun: true})
		require.NoError(t, err)
		want.UpTo = r.UpTo
		require.Equal(t, want, r)
		r, err = s.Discard(t.Context(), all, subscription.DiscardOptions{Actor: "ada"})
		require.NoError(t, err)
		want.Action = r.Action
		require.Equal(t, want, r)
		require.Equal(t, []string{"discarded", "held", "held", "replay", "replay", "held", "replayed", "parked"}, statuses(w, ids))

		// What is named may be held or in replay, unless a runner is at it.
		r, err = s.Discard(t.Context(), subscription.DeadLetterFilter{IDs: ids[1:7]}, subscription.DiscardOptions{Actor: "ada"})
		require.NoError(t, err)
		require.Equal(t, []int64{3, 2, 1}, []int64{r.Marked, r.Busy, r.Past})
		require.Equal(t, []string{"discarded", "discarded", "discarded", "discarded", "replay", "held", "replayed", "parked"}, statuses(w, ids))

		w.exec("UPDATE dead_letters SET taken_until = first_at")
		r, err = s.Discard(t.Context(), subscription.DeadLetterFilter{Subscription: "shipping", Statuses: []subscription.DeadLetterStatus{"held"}}, subscription.DiscardOptions{Actor: "bob"})
		require.NoError(t, err)
		require.EqualValues(t, 1, r.Marked)
		require.Equal(t, []string{"replay", "discarded", "replayed", "parked"}, statuses(w, ids[4:]))
		actions, err := s.Actions(t.Context(), 2)
		require.NoError(t, err)
		require.Equal(t, []string{"bob", "ada"}, []string{actions[0].Actor, actions[1].Actor})
		require.JSONEq(t, `{"subscription":"shipping","statuses":["held"]}`, string(actions[0].Filter))
		for _, a := range actions {
			require.Equal(t, "discard", a.Action)
		}
	})
}

// A runner that has begun to handle a message wins, even before it said so.
func TestDeadLetters_DiscardWaitsForAHandler_C_90(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		s := subscription.NewDeadLetters(w.provider)
		ids := keep(w, keptRow{status: "replay"}, keptRow{status: "replay", key: "other"})
		tx, err := w.provider.DB().BeginTx(t.Context(), nil)
		require.NoError(t, err)
		_, err = tx.ExecContext(t.Context(), "UPDATE dead_letters SET status = 'replayed' WHERE id = ?", ids[0])
		require.NoError(t, err)
		type answer struct {
			r   subscription.DeadLetterResult
			err error
		}
		answers := make(chan answer)
		go func() {
			r, err := s.Discard(context.Background(), subscription.DeadLetterFilter{IDs: ids}, subscription.DiscardOptions{Actor: "ada"})
			answers <- answer{r, err}
		}()
		if w.provider.DB().Dialect().Name() == dialect.PG {
			w.until(func() bool {
				return w.count("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%' || ? || '%'", ids[0]) == 1
			}, "it waits for the row")
		}
		require.NoError(t, tx.Commit())
		a := <-answers
		require.NoError(t, a.err)
		require.EqualValues(t, 1, a.r.Marked)
		require.Equal(t, []string{"replayed", "discarded"}, statuses(w, ids))
	})
}

// A transaction that another one was in the way of is run again, as a whole.
func TestDeadLetters_RetriesATransaction(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		ids := keep(w, keptRow{key: "a"}, keptRow{key: "b"})
		p := &busy{w.provider, w.provider.DB().WithQueryHook(&failOnce{})}
		r, err := subscription.NewDeadLetters(p).Replay(t.Context(), subscription.DeadLetterFilter{Subscription: "shipping"}, subscription.ReplayOptions{Actor: "ada"})
		require.NoError(t, err)
		require.EqualValues(t, 2, r.Marked)
		require.Equal(t, []string{"replay", "replay"}, statuses(w, ids))
		require.Equal(t, 2, w.count("SELECT sum(replays) FROM dead_letters"))
		require.Equal(t, 2, w.count("SELECT CAST(sum(messages) AS bigint) FROM dead_letter_actions"))
	})
}

// busy is a provider to which what failOnce does looks like a deadlock.
type busy struct {
	uow.Provider
	db *bun.DB
}

func (p *busy) DB() *bun.DB { return p.db }

func (p *busy) Retryable(err error) bool { return errors.Is(err, context.Canceled) }

// failOnce lets the first record of an action fail.
type failOnce struct{ done bool }

func (h *failOnce) BeforeQuery(ctx context.Context, e *bun.QueryEvent) context.Context {
	if h.done || !strings.Contains(e.Query, "INTO dead_letter_actions") {
		return ctx
	}
	h.done = true
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return ctx
}

func (h *failOnce) AfterQuery(context.Context, *bun.QueryEvent) {}

// C-90: of two operators who ask for the same, one gets each message.
func TestDeadLetters_TwoOperators_C_90(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		const n = 1500
		keepMany(w, n)
		var wg sync.WaitGroup
		marked := make([]int64, 3)
		for i := range marked {
			wg.Go(func() {
				s := subscription.NewDeadLetters(w.provider)
				r, err := s.Replay(context.Background(), subscription.DeadLetterFilter{Subscription: "shipping"}, subscription.ReplayOptions{Actor: fmt.Sprint(i)})
				if err == nil {
					marked[i] = r.Marked
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, n, marked[0]+marked[1]+marked[2])
		require.Equal(t, n, w.count("SELECT count(*) FROM dead_letters WHERE status = 'replay' AND replays = 1"))
		require.Equal(t, n, w.count("SELECT CAST(sum(messages) AS bigint) FROM dead_letter_actions"))
	})
}

// F-78: ended half-way, all that is marked is on record, nothing is lost, and
// the next call goes on.
func TestDeadLetters_Interrupted_F_78(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		const n = 1500
		keepMany(w, n)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ends := &onUpdate{n: 2, then: cancel}
		p := &hooked{w.provider, w.provider.DB().WithQueryHook(ends)}
		r, err := subscription.NewDeadLetters(p).Replay(ctx, subscription.DeadLetterFilter{Subscription: "shipping"}, subscription.ReplayOptions{Actor: "ada"})
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, "with 1000 messages marked; run it again for the others")
		require.EqualValues(t, 1000, r.Marked)
		state := "SELECT count(*) FROM dead_letters WHERE status = ?"
		require.Equal(t, 1000, w.count(state, "replay"))
		require.Equal(t, 1000, w.count("SELECT messages FROM dead_letter_actions"))
		require.Equal(t, n-1000, w.count(state, "parked"))

		r, err = subscription.NewDeadLetters(w.provider).Replay(t.Context(), subscription.DeadLetterFilter{Subscription: "shipping"}, subscription.ReplayOptions{Actor: "ada"})
		require.NoError(t, err)
		require.EqualValues(t, n-1000, r.Marked)
		require.Equal(t, n, w.count(state, "replay"))
		require.Equal(t, n, w.count("SELECT CAST(sum(messages) AS bigint) FROM dead_letter_actions"))
	})
}

// What fails again while others are still being marked isn't marked again.
func TestDeadLetters_FailedAgainMeanwhile(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		const n = 1100
		keepMany(w, n)
		again := &meanwhile{w.provider, func() { w.exec("UPDATE dead_letters SET status = 'parked' WHERE status = 'replay' AND key_id = '1'") }}
		r, err := subscription.NewDeadLetters(again).Replay(t.Context(), subscription.DeadLetterFilter{Subscription: "shipping"}, subscription.ReplayOptions{Actor: "ada"})
		require.NoError(t, err)
		require.EqualValues(t, n, r.Marked)
		require.Equal(t, 1, w.count("SELECT count(*) FROM dead_letters WHERE status = 'parked' AND replays = 1"))
	})
}

// meanwhile is a provider beside which something happens before each
// transaction.
type meanwhile struct {
	uow.Provider
	then func()
}

func (p *meanwhile) DB() *bun.DB {
	p.then()
	return p.Provider.DB()
}

// hooked is a provider with another view of its database.
type hooked struct {
	uow.Provider
	db *bun.DB
}

func (p *hooked) DB() *bun.DB { return p.db }

// onUpdate calls then before the nth update of dead letters.
type onUpdate struct {
	seen, n int
	then    func()
}

func (h *onUpdate) BeforeQuery(ctx context.Context, e *bun.QueryEvent) context.Context {
	if strings.Contains(e.Query, "UPDATE dead_letters") {
		if h.seen++; h.seen == h.n {
			h.then()
		}
	}
	return ctx
}

func (h *onUpdate) AfterQuery(context.Context, *bun.QueryEvent) {}

// What makes no sense is refused, with the remedy, before anything is done.
func TestDeadLetters_Refused(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		s := subscription.NewDeadLetters(w.provider)
		ids := keep(w, keptRow{}, keptRow{subscription: "billing"})
		for want, f := range map[string]subscription.DeadLetterFilter{
			"names neither a subscription nor ids; name a subscription at least": {Type: "A.v1"},
			"the ids are of several subscriptions, billing, shipping: name one":  {IDs: ids},
			`"x" is not the id of a dead letter`:                                 {IDs: []string{"x"}},
		} {
			_, err := s.Replay(t.Context(), f, subscription.ReplayOptions{Actor: "ada"})
			require.ErrorContains(t, err, want)
			_, err = s.Discard(t.Context(), f, subscription.DiscardOptions{Actor: "ada"})
			require.ErrorContains(t, err, want)
		}
		_, err := s.Replay(t.Context(), subscription.DeadLetterFilter{IDs: ids[:1]}, subscription.ReplayOptions{})
		require.ErrorContains(t, err, "Actor is missing")
		require.Equal(t, []string{"parked", "parked"}, statuses(w, ids))

		// Ids of nobody are told; those of others are nobody's to the subscription.
		nobody := uuid.NewString()
		r, err := s.Replay(t.Context(), subscription.DeadLetterFilter{Subscription: "shipping", IDs: []string{nobody, ids[0], ids[1]}}, subscription.ReplayOptions{Actor: "ada"})
		require.NoError(t, err)
		require.Equal(t, []string{nobody, ids[1]}, r.Missing)
		require.EqualValues(t, 1, r.Marked)
		require.Equal(t, []string{"replay", "parked"}, statuses(w, ids))
		r, err = s.Discard(t.Context(), subscription.DeadLetterFilter{IDs: []string{nobody}}, subscription.DiscardOptions{Actor: "ada"})
		require.NoError(t, err)
		require.Equal(t, subscription.DeadLetterResult{Heads: []string{}, Missing: []string{nobody}}, r)
		r, err = s.Replay(t.Context(), subscription.DeadLetterFilter{Subscription: "unknown"}, subscription.ReplayOptions{Actor: "ada"})
		require.NoError(t, err)
		require.Equal(t, subscription.DeadLetterResult{Subscription: "unknown", Heads: []string{}, Missing: []string{}}, r)
	})
}

// A72, A75, C-12, F-78: from the failure to the replay, with runners and
// operators at work at the same time: every message has its effect once and in the
// order of its key, or was discarded and has none.
func TestDeadLetters_OperatorsAndRunners_A72_A75_C_12_F_78(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		const keys = 12
		var mended atomic.Bool
		stream := w.breaking(&mended)
		for i := range keys {
			w.publish(placed(fmt.Sprint(i), "bad"))
			w.publish(numbered(fmt.Sprint(i), 1, 4)...)
		}
		_, stop := w.start(stream, w.broker)
		defer stop()
		w.until(w.acknowledged("shipping"), "all are set aside")
		s := subscription.NewDeadLetters(w.provider)
		list, err := s.List(t.Context(), subscription.DeadLetterFilter{Key: "0"}, subscription.DeadLetterPage{})
		require.NoError(t, err)
		require.Len(t, list.Letters, 4)
		head, err := s.Show(t.Context(), list.Letters[0].ID)
		require.NoError(t, err)
		require.Equal(t, errBad.Error(), head.Error)
		require.Equal(t, []any{subscription.DeadLetterParked, "parked", 1, int64(0), int64(3), placedV1}, []any{head.Status, head.Reason, head.Attempts, head.Before, head.Behind, head.Headers["type"]})
		require.Contains(t, string(head.Body), `"bad"`)

		r, err := s.Replay(t.Context(), subscription.DeadLetterFilter{Subscription: "another"}, subscription.ReplayOptions{Actor: "ada"})
		require.NoError(t, err)
		require.Zero(t, r.Marked)
		r, err = s.Discard(t.Context(), subscription.DeadLetterFilter{IDs: []string{head.ID}}, subscription.DiscardOptions{Actor: "ada"})
		require.NoError(t, err)
		require.Equal(t, []int64{1, 3}, []int64{r.Marked, r.Following})
		w.until(func() bool { return len(w.effects("0")) == 3 }, "what was held goes on")

		var operators sync.WaitGroup
		for range 2 {
			operators.Go(func() {
				for range 10 {
					_, err := s.Replay(context.Background(), subscription.DeadLetterFilter{Subscription: "shipping", Error: errBad.Error()}, subscription.ReplayOptions{Actor: "ada"})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		operators.Go(func() {
			_, err := s.Discard(context.Background(), subscription.DeadLetterFilter{Subscription: "shipping", Key: "1", Statuses: []subscription.DeadLetterStatus{"parked", "replay"}}, subscription.DiscardOptions{Actor: "bob"})
			if err != nil {
				t.Error(err)
			}
		})
		operators.Wait()
		mended.Store(true)
		w.until(func() bool {
			_, err := s.Replay(t.Context(), subscription.DeadLetterFilter{Subscription: "shipping"}, subscription.ReplayOptions{Actor: "ada", Rate: 200})
			require.NoError(t, err)
			list, err := s.List(t.Context(), subscription.DeadLetterFilter{}, subscription.DeadLetterPage{})
			require.NoError(t, err)
			return list.Total == 0
		}, "nothing is left")
		for i := range keys {
			want := []string{"bad again", "1 again", "2 again", "3 again"}
			got := w.effects(fmt.Sprint(i))
			if i == 0 || i == 1 && len(got) == 3 { // another operator may have been faster
				want = want[1:]
			}
			require.Equal(t, want, got, "key %d", i)
		}
		require.Equal(t, w.allEffects(), w.count("SELECT count(*) FROM dead_letters WHERE status = 'replayed'"))
		require.Equal(t, 4*keys, w.deadLetters())
	})
}
