package relay_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/outbox"
)

// fillOld stores n rows that were published longer ago than they stay, a thousand a call.
func fillOld(b *outboxdbtest.Bench, n int) {
	b.T.Helper()
	m := b.Join("old", time.Hour, outboxdbtest.Partitions)
	for done := 0; done < n; done += 1000 {
		b.Insert(outboxdbtest.Numbered(fmt.Sprintf("old-%d", done), min(n-done, 1000))...)
		require.True(b.T, m.Settle(m.Settlement(m.ClaimAll()...)))
	}
	require.NoError(b.T, b.Leave(b.T.Context(), []relay.MemberID{m.ID}))
	expireAll(b)
}

// expireAll has all that is finished stay no longer, as time would.
func expireAll(b *outboxdbtest.Bench) {
	b.T.Helper()
	past := "clock_timestamp() - interval '31 days'"
	if b.SQLite() {
		past = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-31 days')"
	}
	b.Exec("UPDATE outbox_log SET at = " + past)
	b.Exec("UPDATE outbox_abandoned SET at = " + past)
}

func stored(b *outboxdbtest.Bench) int64 { return b.Count("SELECT count(*) FROM outbox_messages") }

// F-47, F-48: while writers commit and two processes publish, rows that have expired go;
// what isn't delivered stays, and is delivered, once and in order.
// Conformance: U-11.
func TestHousekeeping_F_47_F_48_WhileOthersPublish(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		fillOld(b, 3000)
		m := memory.New(memory.Config{})
		failKey(m, "bad", refuse("not yet"))
		cfg := quick()
		cfg.OnAbandoned, cfg.Retry.MaxAttempts, cfg.Retention.Every = outbox.Hold, 2, 20*time.Millisecond
		bad := b.Insert("bad", "bad")
		for range 2 {
			processor(t, b, cfg, to(m))
		}
		var mu sync.Mutex
		var rows []outbox.Row
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				for range 25 {
					added := b.Insert(fmt.Sprintf("k%d", i), fmt.Sprintf("k%d", i))
					mu.Lock()
					rows = append(rows, added...)
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		// The old ones are gone.
		statuses(t, b, map[outbox.Status]int{outbox.Abandoned: 1, outbox.Pending: 1, outbox.Published: 200})
		require.EqualValues(t, 202, stored(b))
		require.Len(t, m.Messages(orders), 200)
		require.Equal(t, rowsByKey(rows), byKey(m.Messages(orders)))

		m.FailWhere(nil)
		held, err := b.Find(t.Context(), outbox.Filter{Statuses: []outbox.Status{outbox.Abandoned}})
		require.NoError(t, err)
		require.Equal(t, bad[0].MessageID, held[0].MessageID)
		require.NoError(t, change(t.Context(), b, outbox.VerbRetry, held[0].Seq))
		statuses(t, b, map[outbox.Status]int{outbox.Published: 202})
		require.Equal(t, rowsByKey(append(rows, bad...)), byKey(m.Messages(orders)))
	})
}

// refuseRemovals makes the database refuse to remove a body, until allow is called.
func refuseRemovals(b *outboxdbtest.Bench) (allow func()) {
	b.T.Helper()
	if b.SQLite() {
		b.Exec("CREATE TRIGGER refuse BEFORE DELETE ON outbox_messages BEGIN SELECT RAISE(ABORT, 'not now'); END")
		return func() { b.Exec("DROP TRIGGER refuse") }
	}
	b.Exec("CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not now'; END $$")
	b.Exec("CREATE TRIGGER refuse BEFORE DELETE ON outbox_messages FOR EACH ROW EXECUTE FUNCTION refuse()")
	return func() { b.Exec("DROP TRIGGER refuse ON outbox_messages") }
}

// A68, S2-47: a clean-up that fails, before or after it has its turn, stops nothing; the
// log has a line when that begins and one when it ends, and what was to be removed is
// removed then.
func TestHousekeeping_A68_S2_47_FailsAndIsTriedAgain(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		fillOld(b, 10)
		cfg := quick()
		cfg.Retention.Every = time.Second // a turn that is over before its first step removes nothing, and does not fail
		b.Exec("ALTER TABLE outbox_jobs RENAME TO gone")
		_, log := logged(t, b, cfg, to(memory.New(memory.Config{})))
		eventually(t, func() bool { return log.count("the outbox could not be cleaned up") == 1 }, "it is logged")
		b.Insert("a", "b")
		statuses(t, b, map[outbox.Status]int{outbox.Published: 12})
		b.Exec("ALTER TABLE gone RENAME TO outbox_jobs")
		statuses(t, b, map[outbox.Status]int{outbox.Published: 2})
		eventually(t, func() bool { return log.count("the outbox is cleaned up again") == 1 }, "so is its end")

		allow := refuseRemovals(b)
		expireAll(b)
		eventually(t, func() bool { return log.count("the outbox could not be cleaned up") == 2 }, "once more")
		b.Insert("c")
		statuses(t, b, map[outbox.Status]int{outbox.Published: 3})
		allow()
		eventually(t, func() bool { return log.count("the outbox is cleaned up again") == 2 }, "and its end")
		statuses(t, b, map[outbox.Status]int{outbox.Published: 1})
		require.Equal(t, 2, log.count("the outbox could not be cleaned up"))
	})
}

// S1-19, S2-47, F-48: housekeeping comes at the start, says how many rows of each kind it
// removed and how long that took, and leaves other providers alone.
func TestHousekeeping_S1_19_S2_47_AtTheStart(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		other := outboxdbtest.Open(t, outboxdbtest.SQLite(t))
		for _, b := range []*outboxdbtest.Bench{b, other} {
			b.Insert("a", "b", "c")
			m := b.Join("w1", time.Hour, outboxdbtest.Partitions)
			rows := m.ClaimAll()
			s := m.Settlement(rows[:2]...)
			s.Abandoned = []relay.Abandonment{{RowRef: rows[2].Ref(), Class: "permanent", Error: "x", Attempts: 1}}
			require.True(t, m.Settle(s))
			expireAll(b)
		}
		_, log := logged(t, b, quick(), to(memory.New(memory.Config{}))) // hourly
		statuses(t, b, map[outbox.Status]int{})
		eventually(t, func() bool { return log.count("published=2 abandoned=1 took=") == 1 }, "it is logged")
		require.EqualValues(t, 3, stored(other))
	})
}

// turns is a store that says whether it had its turn.
type turns struct {
	*outboxdb.Store
	had chan bool
}

func (s turns) TakeTurn(ctx context.Context, job string, every time.Duration) (bool, error) {
	mine, err := s.Store.TakeTurn(ctx, job, every)
	s.had <- mine
	return mine, err
}

// Where nobody cleans up, people still read how long rows stay and how often one is tried.
func TestHousekeeping_WithoutACleanUpTheSettingsAreWritten(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		fillOld(b, 3)
		cfg := quick()
		cfg.Retry.MaxAttempts, cfg.Retention = 3, outbox.Retention{Published: -1, Abandoned: -1, Every: -1}
		s := turns{b.Store, make(chan bool, 1)}
		p := start(t, relay.Config{Store: s, Lanes: []relay.Lane{to(memory.New(memory.Config{}))}, Outbox: cfg})
		eventually(t, func() bool { return entries(t, b)[0].MaxAttempts == 3 }, "the view says how often a row is tried")
		require.Nil(t, entries(t, b)[0].ExpiresAt)
		require.NoError(t, p.Stop(t.Context()))
		require.Empty(t, s.had, "it takes no turn")
		require.EqualValues(t, 3, stored(b))
	})
}

// standing stands still in the middle of a purge, behind its first step.
type standing struct {
	removed atomic.Bool
	once    sync.Once
	stands  chan struct{}
}

func (s *standing) BeforeQuery(ctx context.Context, e *bun.QueryEvent) context.Context {
	if strings.HasPrefix(e.Query, "DELETE FROM outbox_messages") && s.removed.Load() {
		s.once.Do(func() { close(s.stands) })
		<-ctx.Done()
	}
	return ctx
}

func (s *standing) AfterQuery(_ context.Context, e *bun.QueryEvent) {
	if strings.HasPrefix(e.Query, "DELETE FROM outbox_messages") && e.Err == nil {
		s.removed.Store(true)
	}
}

// F-47: a stop doesn't wait for a clean-up. What was removed by then stays removed, and
// another process goes on when the next turn comes.
// Conformance: U-11.
func TestHousekeeping_F_47_StoppedInTheMiddle(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		const rows = 3000
		fillOld(b, rows)
		hook := &standing{stands: make(chan struct{})}
		hooked := b.As.WithQueryHook(hook)
		lanes := []relay.Lane{to(memory.New(memory.Config{}))}
		p := start(t, relay.Config{Store: outboxdb.New(hooked, hooked), Lanes: lanes, Outbox: quick()})
		<-hook.stands
		require.NoError(t, p.Stop(t.Context()))
		n := stored(b)
		require.Positive(t, n)
		require.Less(t, n, int64(rows))

		next := func() bool {
			s := turns{b.Store, make(chan bool, 1)}
			start(t, relay.Config{Store: s, Lanes: lanes, Outbox: quick()})
			return <-s.had
		}
		require.False(t, next(), "an hour hasn't passed")
		require.Equal(t, n, stored(b))
		b.Exec("UPDATE outbox_jobs SET due_at = (SELECT min(created_at) FROM outbox_messages)")
		require.True(t, next())
		eventually(t, func() bool { return stored(b) == 0 }, "another goes on")
	})
}

// purges is a process's store that counts the purges of all.
type purges struct {
	relayStore
	n *atomic.Int64
}

type relayStore interface {
	relay.Store
	relay.Housekeeping
}

func (p purges) Purge(ctx context.Context, r outbox.Retention) (outbox.Purged, error) {
	p.n.Add(1)
	return p.relayStore.Purge(ctx, r)
}

// A69: three processes clean up once per interval together.
func TestHousekeeping_A69_OncePerInterval(t *testing.T) {
	inWorld(t, func(w *world) {
		var n atomic.Int64
		for range 3 {
			w.start(func(p *process, cfg *relay.Config) { cfg.Store = purges{p.store, &n} })
			time.Sleep(7 * time.Minute) //nolint:forbidigo // in a bubble
		}
		time.Sleep(5 * time.Hour) //nolint:forbidigo // in a bubble
		require.EqualValues(t, 6, n.Load(), "at the start, and hourly")
	})
}

// Delete on publish leaves no row.
func TestProcessor_RetentionDelete(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.Insert("a", "b")
		m := memory.New(memory.Config{})
		cfg := quick()
		cfg.Retention.Delete = true
		processor(t, b, cfg, to(m))
		statuses(t, b, map[outbox.Status]int{})
		require.Len(t, m.Messages(orders), 2)
	})
}

// S3-18: housekeeping removes what has expired, on schedule.
func TestProcessor_RetentionPublished(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.Insert("a", "b")
		m := memory.New(memory.Config{})
		cfg := quick()
		cfg.Lease, cfg.Retry.MaxAttempts = 3*time.Second, 1 // no retention is shorter than they allow
		cfg.Retention = outbox.Retention{Published: 3 * time.Second, Every: 50 * time.Millisecond}
		processor(t, b, cfg, to(m))
		statuses(t, b, map[outbox.Status]int{})
		require.Len(t, m.Messages(orders), 2)
	})
}
