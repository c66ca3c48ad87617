package outbox_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/outbox/outboxtest"
)

// lease, publish_timeout: rows show the end of the lease; a call that isn't
// answered ends in time, though its lease would go on.
func TestSettings_LeaseAndPublishTimeout(t *testing.T) {
	b := outboxtest.Open(t, openSQLite(t))
	b.Insert("a")
	m := memory.New(memory.Config{})
	release := m.Stall()
	defer release()
	cfg := quick()
	cfg.Lease, cfg.PublishTimeout = time.Hour, 500*time.Millisecond
	p := processor(t, b, cfg, lane(m))
	require.Eventually(t, func() bool { return len(m.Calls()) == 1 }, 10*time.Second, time.Millisecond)
	began := time.Now()
	e := b.Entries()[0]
	require.InDelta(t, time.Hour.Seconds(), e.LockedUntil.Sub(*e.LastAttemptAt).Seconds(), 5)
	require.Eventually(t, func() bool { return p.Status()["default"].LastError != "" }, 20*time.Second, time.Millisecond)
	require.Contains(t, p.Status()["default"].LastError, "no answer: context deadline exceeded")
	require.Less(t, time.Since(began), 10*time.Second, "the default is 30 s")
}

// poll_interval, max_poll_interval: an idle processor looks less and less often,
// down to the longest interval.
func TestSettings_PollIntervals(t *testing.T) {
	t.Parallel()
	// How often a processor without work has looked for some.
	idle := func(interval, longest time.Duration) (looks func() int) {
		b := outboxtest.Open(t, openSQLite(t))
		sent := &outboxtest.Queries{}
		cfg := outbox.Config{Workers: 1, PollInterval: interval, MaxPollInterval: longest, Lease: time.Hour, Retention: outbox.Retention{Every: -1}}
		start(t, outbox.ProcessorConfig{
			Provider: "default", Outbox: cfg, Lanes: []outbox.Lane{lane(memory.New(memory.Config{}))},
			Store: outbox.NewStore(b.As, b.As.WithQueryHook(sent)),
		})
		n := 0
		return func() int {
			for _, q := range sent.Take() {
				if !strings.Contains(q, "outbox_workers") { // that looks for partitions
					n++
				}
			}
			return n
		}
	}
	often, seldom, hardly := idle(10*time.Millisecond, 10*time.Millisecond), idle(10*time.Millisecond, time.Hour), idle(time.Hour, time.Hour)
	require.Eventually(t, func() bool { return often() >= 150 }, 30*time.Second, 5*time.Millisecond)
	require.Less(t, seldom(), 50, "it doubles")
	require.Less(t, hardly(), 15)
	require.Less(t, hardly(), seldom())
}

// retention: when rows expire, or that they never do, and how often is cleaned up,
// or that it never is.
func TestSettings_Retention(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		w := b.Worker("w1", outboxtest.Partitions, time.Minute)
		settled := func(r outbox.Retention) (published, abandoned outbox.Entry) {
			b.Exec("DELETE FROM outbox")
			b.Insert("a", "b")
			c := w.Claim(2)
			_, err := b.Settle(t.Context(), outbox.Settlement{Claim: c.ID, Target: w.Target, Retention: r, Outcomes: []outbox.Outcome{
				{Seq: c.Rows[0].Seq, Status: outbox.Published},
				{Seq: c.Rows[1].Seq, Status: outbox.Abandoned, Class: "permanent", Error: "no"},
			}})
			require.NoError(t, err)
			all := b.Entries()
			return all[0], all[1]
		}
		published, abandoned := settled(outbox.Retention{Published: 2 * time.Hour, Abandoned: 3 * time.Hour})
		require.InDelta(t, 2, published.ExpiresAt.Sub(*published.LastAttemptAt).Hours(), 0.01)
		require.InDelta(t, 3, abandoned.ExpiresAt.Sub(*abandoned.LastAttemptAt).Hours(), 0.01)
		published, abandoned = settled(outbox.Retention{Published: -1, Abandoned: -1})
		require.Nil(t, published.ExpiresAt)
		require.Nil(t, abandoned.ExpiresAt)
	})

	cleaned := func(every time.Duration) (after time.Duration, ok bool) {
		b := outboxtest.Open(t, openSQLite(t))
		b.Insert("a")
		cfg := quick()
		cfg.Retention.Every = every
		p := processor(t, b, cfg, lane(memory.New(memory.Config{})))
		statuses(t, b, map[outbox.Status]int{outbox.Published: 1})
		require.NoError(t, p.Stop(t.Context()))
		var due []time.Time
		require.NoError(t, b.DB.NewRaw("SELECT due_at FROM outbox_jobs WHERE name = 'purge'").Scan(t.Context(), &due))
		if len(due) == 0 {
			return 0, false
		}
		return time.Until(due[0]), true
	}
	after, ok := cleaned(2 * time.Hour)
	require.True(t, ok)
	require.InDelta(t, 2, after.Hours(), 0.02)
	_, ok = cleaned(-1)
	require.False(t, ok, "never")
}
