package outboxdb_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/outbox"
)

// S0-20: what is promised is settled: a row that is undelivered, held, put back by an operator
// below what was promised before, or given up though it may have arrived, keeps the
// promise where it is.
func TestPromise_S0_20(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		m := b.Join("host-1-w1", time.Minute, outboxdbtest.Partitions)
		var memory outboxdb.Promises
		settled := func() time.Time {
			t.Helper()
			var p outbox.Promise
			waittest.Until(t, func() bool { // the horizon has to pass
				var ok bool
				var err error
				p, ok, err = b.Promise(t.Context(), "default", &memory)
				require.NoError(t, err)
				return ok
			})
			require.False(t, p.Settled.After(p.AsOf))
			return p.Settled
		}
		begin := settled()
		b.Insert("a", "abandoned", "held")
		first := mustFind(t, b, 1).CreatedAt
		for range 3 {
			require.False(t, settled().After(first))
		}
		settleEach(m, m.ClaimAll()) // "a" stays in hand no more, and undelivered
		require.False(t, settled().After(first))
		for _, r := range m.Look(10) {
			if r.Seq == 1 {
				m.Settle(m.Settlement(m.Claim(r)...))
			}
		}
		third := mustFind(t, b, 3).CreatedAt
		waittest.Until(t, func() bool { return settled().Equal(third) }, "what was refused for good isn't there")
		change(t, b, outbox.Filter{Held: true}, outbox.Change{Verb: outbox.VerbSkip})
		require.False(t, settled().After(third), "it may have arrived")
		b.Exec("UPDATE outbox_abandoned SET maybe_delivered = FALSE")
		waittest.Until(t, func() bool { return settled().After(third) })

		change(t, b, outbox.Filter{Seqs: []int64{2}}, outbox.Change{Verb: outbox.VerbRetry})
		require.True(t, settled().Equal(mustFind(t, b, 2).CreatedAt), "an operator puts it back below")
		require.False(t, begin.After(first))
	})
}

// S0-20: a row is stored before its transaction ends. What others publish meanwhile
// promises nothing of that time.
func TestPromise_S0_20_OpenTransaction(t *testing.T) {
	t.Parallel()
	b := outboxdbtest.Open(t, outboxdbtest.PostgreSQL(t))
	var memory outboxdb.Promises
	promise := func(memory *outboxdb.Promises) (outbox.Promise, bool) {
		p, ok, err := b.Promise(t.Context(), "default", memory)
		require.NoError(t, err)
		return p, ok
	}
	waittest.Until(t, func() bool { _, ok := promise(&memory); return ok })
	m := b.Join("w1", time.Hour, outboxdbtest.Partitions)
	tx, err := b.DB.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	insert(t, tx, outboxdbtest.Row("late"))
	var at time.Time
	require.NoError(t, tx.QueryRowContext(t.Context(), "SELECT created_at FROM outbox_messages").Scan(&at))
	b.Insert("early")
	m.Settle(m.Settlement(m.ClaimAll()...))
	for range 5 {
		p, _ := promise(&memory)
		require.True(t, p.Settled.Before(at), "%v is promised, and a row of %v can't be seen yet", p.Settled, at)
		var fresh outboxdb.Promises
		_, ok := promise(&fresh)
		require.False(t, ok, "who begins now knows nothing")
	}
	require.NoError(t, tx.Commit())
	for range 5 {
		p, _ := promise(&memory)
		require.False(t, p.Settled.After(at), "it is undelivered")
	}
	m.Settle(m.Settlement(m.ClaimAll()...))
	waittest.Until(t, func() bool { p, ok := promise(&memory); return ok && p.Settled.After(at) })
}
