package subscription_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// A transaction that another one was in the way of is run again, as a whole.
func TestDeadLetters_RetriesATransaction(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		ids := keep(w, keptRow{key: "a"}, keptRow{key: "b"})
		p := &busy{hooked{w.provider, w.provider.DB().WithQueryHook(&failOnce{})}}
		r, err := subscription.NewDeadLetters(p).Replay(t.Context(), subscription.DeadLetterFilter{Subscription: "shipping"}, subscription.ReplayOptions{Actor: "ada"})
		require.NoError(t, err)
		require.EqualValues(t, 2, r.Marked)
		require.Equal(t, []string{"replay", "replay"}, statuses(w, ids))
		require.Equal(t, 2, w.count("SELECT sum(replays) FROM dead_letters"))
		require.Equal(t, 2, w.count("SELECT CAST(sum(messages) AS bigint) FROM dead_letter_actions"))
	})
}

// busy is a provider to which what failOnce does looks like a deadlock.
type busy struct{ hooked }

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
// Conformance: U-18.
func TestDeadLetters_Interrupted_F_78(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		const n = 1500
		keepMany(w, n)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		updates := 0
		ends := before{"UPDATE dead_letters", func() {
			if updates++; updates == 2 {
				cancel()
			}
		}}
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
		fails := before{"BEGIN", func() { w.exec("UPDATE dead_letters SET status = 'parked' WHERE status = 'replay' AND key_id = '1'") }}
		again := &hooked{w.provider, w.provider.DB().WithQueryHook(fails)}
		r, err := subscription.NewDeadLetters(again).Replay(t.Context(), subscription.DeadLetterFilter{Subscription: "shipping"}, subscription.ReplayOptions{Actor: "ada"})
		require.NoError(t, err)
		require.EqualValues(t, n, r.Marked)
		require.Equal(t, 1, w.count("SELECT count(*) FROM dead_letters WHERE status = 'parked' AND replays = 1"))
	})
}

// hooked is a provider with another view of its database.
type hooked struct {
	uow.Provider
	db *bun.DB
}

func (p *hooked) DB() *bun.DB { return p.db }

// before calls then before each query that has text in it.
type before struct {
	text string
	then func()
}

func (h before) BeforeQuery(ctx context.Context, e *bun.QueryEvent) context.Context {
	if strings.Contains(e.Query, h.text) {
		h.then()
	}
	return ctx
}

func (h before) AfterQuery(context.Context, *bun.QueryEvent) {}

// A row that another session has locked isn't waited for while runners wait for the others.
func TestDeadLetters_WaitsForNoLockWithOthers(t *testing.T) {
	t.Parallel()
	ctx, f := t.Context(), subscription.DeadLetterFilter{Subscription: "shipping"}
	for name, operate := range map[string]func(s *subscription.DeadLetters) error{
		"replay": func(s *subscription.DeadLetters) error {
			_, err := s.Replay(ctx, f, subscription.ReplayOptions{Actor: "ada"})
			return err
		},
		"discard": func(s *subscription.DeadLetters) error {
			_, err := s.Discard(ctx, f, subscription.DiscardOptions{Actor: "ada"})
			return err
		},
		"purge": func(s *subscription.DeadLetters) error {
			_, err := s.Purge(ctx, subscription.DeadLetterFilter{Subscription: "shipping", Statuses: []subscription.DeadLetterStatus{subscription.DeadLetterParked}}, subscription.PurgeOptions{Actor: "ada"})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, openPostgres(t))
			ids := keep(w, keptRow{key: "a", skips: true}, keptRow{key: "b", skips: true})
			lock := func(id string) *bun.Tx {
				tx, err := w.provider.DB().BeginTx(ctx, nil)
				require.NoError(t, err)
				t.Cleanup(func() { _ = tx.Rollback() })
				_, err = tx.ExecContext(ctx, "SET LOCAL lock_timeout = '1min'; SELECT 1 FROM dead_letters WHERE id = ? FOR UPDATE", id)
				require.NoError(t, err)
				return &tx
			}
			other, ended := lock(ids[1]), make(chan error, 1)
			var session int
			require.NoError(t, other.NewRaw("SELECT pg_backend_pid()").Scan(ctx, &session))
			go func() { ended <- operate(subscription.NewDeadLetters(w.provider)) }()
			waittest.Until(t, func() bool {
				return w.count("SELECT count(*) FROM pg_locks WHERE NOT granted AND ? = ANY (pg_blocking_pids(pid))", session) == 1
			})
			runner := lock(ids[0])
			require.NoError(t, runner.Rollback())
			require.NoError(t, other.Rollback())
			require.NoError(t, <-ended)
			require.Equal(t, 2, w.count("SELECT messages FROM dead_letter_actions"))
		})
	}
}
