package subscription_test

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/subscription"
)

// A75, C-17, F-78: only what the filter chooses is marked, and only of its
// subscription; what is held is left to follow; who asked is on record, and a dry
// run says the same and does nothing.
// Conformance: U-18.
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
			Subscription: "shipping", Marked: 2, Skipping: 1, Following: 2, Behind: 1, Heads: []string{ids[3]}, Held: 1, Underway: 1, Past: 1, Needs: []string{}, Missing: []string{},
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
			r.Subscription, r.Missing, r.Needs, r.UpTo = "", nil, nil, 0
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
// Conformance: U-18.
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
			Subscription: "shipping", Marked: 1, Following: 2, Held: 2, Underway: 1, Busy: 2, Past: 1, Heads: []string{}, Needs: []string{}, Missing: []string{},
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
		require.Equal(t, subscription.DeadLetterResult{Heads: []string{}, Needs: []string{}, Missing: []string{nobody}}, r)
		r, err = s.Replay(t.Context(), subscription.DeadLetterFilter{Subscription: "unknown"}, subscription.ReplayOptions{Actor: "ada"})
		require.NoError(t, err)
		require.Equal(t, subscription.DeadLetterResult{Subscription: "unknown", Heads: []string{}, Needs: []string{}, Missing: []string{}}, r)
	})
}

// A72, A75, C-12, F-78: from the failure to the replay, with runners and
// operators at work at the same time: every message has its effect once and in the
// order of its key, or was discarded and has none.
// Conformance: U-18.
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
