package subscription_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/subscription"
)

// left says which of some dead letters are still there.
func left(w *world, ids []string) (there []bool) {
	w.t.Helper()
	for _, id := range ids {
		there = append(there, w.count("SELECT count(*) FROM dead_letters WHERE id = ?", id) == 1)
	}
	return there
}

// S12: what was replayed or discarded goes after its retention, counted from then;
// what is open stays, however old. One process at a time does it, once per interval.
func TestDeadLetters_S12_CleanUp(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		s := subscription.NewDeadLetters(w.provider)
		young := time.Now().Add(-time.Hour)
		ids := keep(
			w,
			keptRow{status: "replayed"}, keptRow{status: "replayed", at: young},
			keptRow{status: "discarded"}, keptRow{key: "d"}, // discarded below
			keptRow{key: "p"}, keptRow{key: "p", status: "held"}, keptRow{key: "r", status: "replay"}, keptRow{key: "s", skips: true},
		)
		_, err := s.Discard(t.Context(), subscription.DeadLetterFilter{IDs: ids[3:4]}, subscription.DiscardOptions{Actor: "ada"})
		require.NoError(t, err)

		n, err := s.CleanUp(t.Context(), subscription.DeadLetterRetention{Resolved: -1})
		require.NoError(t, err)
		require.Zero(t, n, "kept for ever")
		n, err = s.CleanUp(t.Context(), subscription.DeadLetterRetention{Every: -1})
		require.NoError(t, err)
		require.Zero(t, n, "nobody cleans up")

		var all sync.WaitGroup
		removed := make([]int64, 4)
		for i := range removed {
			all.Go(func() {
				var err error
				removed[i], err = s.CleanUp(t.Context(), subscription.DeadLetterRetention{Batch: 1})
				require.NoError(t, err)
			})
		}
		all.Wait()
		require.EqualValues(t, 2, removed[0]+removed[1]+removed[2]+removed[3])
		require.Equal(t, []bool{false, true, false, true, true, true, true, true}, left(w, ids))

		keep(w, keptRow{status: "replayed"})
		n, err = s.CleanUp(t.Context(), subscription.DeadLetterRetention{})
		require.NoError(t, err)
		require.Zero(t, n, "it was done within the hour")
		w.exec("UPDATE subscription_jobs SET due_at = ?", bun.Safe(dbtime.Now(w.provider.DB().Dialect())))
		n, err = s.CleanUp(t.Context(), subscription.DeadLetterRetention{})
		require.NoError(t, err)
		require.EqualValues(t, 1, n)

		keep(w, keptRow{status: "replayed"})
		w.exec("UPDATE subscription_jobs SET due_at = '2999-01-01T00:00:00.000Z'")
		n, err = s.CleanUp(t.Context(), subscription.DeadLetterRetention{})
		require.NoError(t, err)
		require.EqualValues(t, 1, n, "what a clock that was wrong has left stops nobody")
	})
}

// S12: a message that its subscription handled again is kept from its replay on.
func TestDeadLetters_S12_KeptFromTheReplayOn(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		s := subscription.NewDeadLetters(w.provider)
		refuse := true
		var mu sync.Mutex
		w.start(w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
			mu.Lock()
			defer mu.Unlock()
			if refuse {
				return subscription.Park(errors.New("no such customer"))
			}
			return effect(ctx, e)
		})), w.broker)
		w.publish(placed("o-1", ""))
		w.until(func() bool { return w.deadLetters() == 1 }, "it is parked")
		w.exec("UPDATE dead_letters SET first_at = ?0, last_at = ?0", dbtime.Value(w.provider.DB().Dialect(), keptAt))
		mu.Lock()
		refuse = false
		mu.Unlock()
		_, err := s.Replay(t.Context(), subscription.DeadLetterFilter{Subscription: "shipping"}, subscription.ReplayOptions{Actor: "ada"})
		require.NoError(t, err)
		w.until(func() bool { return w.allEffects() == 1 }, "it is handled again")
		n, err := s.CleanUp(t.Context(), subscription.DeadLetterRetention{Every: time.Millisecond})
		require.NoError(t, err)
		require.Zero(t, n)
		w.exec("UPDATE dead_letters SET last_at = ?", dbtime.Value(w.provider.DB().Dialect(), time.Now().Add(-721*time.Hour)))
		w.until(func() bool {
			_, err := s.CleanUp(t.Context(), subscription.DeadLetterRetention{Every: time.Millisecond})
			return err == nil && w.deadLetters() == 0
		}, "it goes")
	})
}

func TestDeadLetterRetention_S12_Check(t *testing.T) {
	t.Parallel()
	require.NoError(t, subscription.DeadLetterRetention{}.Check())
	require.NoError(t, subscription.DeadLetterRetention{Resolved: -1, Every: -1}.Check())
	err := subscription.DeadLetterRetention{Resolved: -2, Every: -3, Batch: 100001}.Check()
	for _, what := range []string{"subscriptions.dead_letters.resolved is -2ns", "subscriptions.dead_letters.every is -3ns", "subscriptions.dead_letters.batch is 100001"} {
		require.ErrorContains(t, err, what)
	}
}

// S12: an operator removes what is over; what is open only by its status, and
// nothing that holds its key. Who did it is on record, and a dry run says the same.
func TestDeadLetters_S12_Purge(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		type status = subscription.DeadLetterStatus
		s := subscription.NewDeadLetters(w.provider)
		ids := keep(
			w,
			keptRow{status: "replayed"}, keptRow{status: "replayed", at: time.Now()}, keptRow{status: "discarded", subscription: "billing"},
			keptRow{key: "p"}, keptRow{key: "p", status: "held"}, keptRow{key: "r", status: "replay", skips: true}, keptRow{key: "s", skips: true},
		)
		o := subscription.PurgeOptions{OlderThan: time.Hour, DryRun: true}
		got, err := s.Purge(t.Context(), subscription.DeadLetterFilter{}, o)
		require.NoError(t, err)
		want := subscription.PurgeResult{Removed: map[status]int64{"replayed": 1, "discarded": 1}, Heads: []string{}}
		require.Equal(t, want, got)
		require.Equal(t, []bool{true, true, true, true, true, true, true}, left(w, ids))

		o.DryRun = false
		_, err = s.Purge(t.Context(), subscription.DeadLetterFilter{}, o)
		require.ErrorContains(t, err, "Actor is missing")
		o.Actor = "ada"
		told := int64(0)
		o.Progress = func(n int64) { told = n }
		got, err = s.Purge(t.Context(), subscription.DeadLetterFilter{}, o)
		require.NoError(t, err)
		require.NotZero(t, got.Action)
		want.Action = got.Action
		require.Equal(t, want, got)
		require.EqualValues(t, 2, told)
		require.Equal(t, []bool{false, true, false, true, true, true, true}, left(w, ids))
		actions, err := s.Actions(t.Context(), 10)
		require.NoError(t, err)
		require.Len(t, actions, 1)
		require.Equal(t, []any{"ada", "purge", "", int64(2)}, []any{actions[0].Actor, actions[0].Action, actions[0].Subscription, actions[0].Messages})
		require.JSONEq(t, `{"statuses":["replayed","discarded"],"older_than":"1h0m0s"}`, string(actions[0].Filter))

		for at, of := range map[int]status{3: "parked", 4: "held", 5: "replay"} {
			got, err = s.Purge(t.Context(), subscription.DeadLetterFilter{Statuses: []status{of}}, o)
			require.ErrorContains(t, err, ids[at]+": discard these first")
			require.ErrorContains(t, err, "nothing was removed")
			require.EqualValues(t, 1, got.Refused)
			require.Zero(t, got.Total()+got.Action)
		}
		got, err = s.Purge(t.Context(), subscription.DeadLetterFilter{IDs: ids[6:]}, o)
		require.NoError(t, err)
		require.Zero(t, got.Total(), "an id names no status")
		got, err = s.Purge(t.Context(), subscription.DeadLetterFilter{IDs: ids[6:], Statuses: []status{"parked"}}, o)
		require.NoError(t, err)
		require.Equal(t, map[status]int64{"parked": 1}, got.Removed)
		require.Equal(t, []bool{false, true, false, true, true, true, false}, left(w, ids))
		_, err = s.Purge(t.Context(), subscription.DeadLetterFilter{}, subscription.PurgeOptions{Actor: "ada", OlderThan: -1})
		require.ErrorContains(t, err, "OlderThan is -1ns")
	})
}

// S12: many are removed in several transactions; ended half-way, what is gone is on
// record, and the next call goes on.
func TestDeadLetters_S12_PurgeEndsHalfWay(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		const n = 1500
		keepMany(w, n)
		w.exec("UPDATE dead_letters SET status = 'replayed'")
		s := subscription.NewDeadLetters(w.provider)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r, err := s.Purge(ctx, subscription.DeadLetterFilter{}, subscription.PurgeOptions{Actor: "ada", Progress: func(int64) { cancel() }})
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, "with 1000 removed; run it again for the others")
		require.EqualValues(t, 1000, r.Total())
		require.Equal(t, n-1000, w.deadLetters())
		r, err = s.Purge(t.Context(), subscription.DeadLetterFilter{}, subscription.PurgeOptions{Actor: "ada"})
		require.NoError(t, err)
		require.EqualValues(t, n-1000, r.Total())
		require.Equal(t, n, w.count("SELECT CAST(sum(messages) AS bigint) FROM dead_letter_actions"))
		require.Zero(t, w.deadLetters())
	})
}
