package subscription_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/subscription"
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
			"message":       {subscription.DeadLetterFilter{MessageID: "m-" + ids[1]}, []int{1}},
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
// Conformance: C-14.
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

// C-17: what waits for somebody is counted, and what is over is not.
func TestCountDeadLetters_C_17(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		counts, err := subscription.CountDeadLetters(t.Context(), w.provider.Reader())
		require.NoError(t, err)
		require.Empty(t, counts)
		keep(
			w,
			keptRow{}, keptRow{status: "held"}, keptRow{status: "replay"}, keptRow{status: "replayed"}, keptRow{status: "discarded"},
			keptRow{subscription: "billing"}, keptRow{subscription: "over", status: "discarded"},
		)
		counts, err = subscription.CountDeadLetters(t.Context(), w.provider.Reader())
		require.NoError(t, err)
		require.Equal(t, map[string]int64{"shipping": 3, "billing": 1}, counts)
	})
}
