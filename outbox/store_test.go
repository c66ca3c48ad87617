package outbox_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/internal/rights/rightstest"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/outbox/outboxtest"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
	"github.com/waybill-go/waybill/uow/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStore_SQLite(t *testing.T) {
	outboxtest.Run(t, func(t *testing.T) outboxtest.Database { return openSQLite(t) })
}

func TestStore_PostgreSQL(t *testing.T) {
	outboxtest.Run(t, func(t *testing.T) outboxtest.Database { return openPostgres(t) })
}

func openSQLite(t testing.TB) outboxtest.Database {
	p, err := sqlite.Open(t.Context(), sqlite.Config{Path: filepath.Join(t.TempDir(), "outbox.db")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

var schemas atomic.Int64

// limited is worked with as an engine's role.
type limited struct {
	uow.Provider
	cfg postgres.Config
}

func (l limited) Limited(t testing.TB) outboxtest.Database {
	return rightstest.As(t, l.Provider, l.cfg, migrate.Engine, outbox.Migrations())
}

// openPostgres gives a test a schema of its own.
func openPostgres(t testing.TB) outboxtest.Database {
	dsn := os.Getenv("WAYBILL_POSTGRES")
	require.NotEmpty(t, dsn, `run scripts/test, or eval "$(scripts/services up)"`)
	name := fmt.Sprintf("outbox_%d_%d", os.Getpid(), schemas.Add(1))
	cfg := postgres.Config{DSN: dsn, Schema: name}
	p, err := postgres.Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := p.DB().ExecContext(context.Background(), "DROP SCHEMA IF EXISTS "+name+" CASCADE")
		require.NoError(t, err)
		require.NoError(t, p.Close())
	})
	return limited{p, cfg}
}

// each runs a test on every database, beside others.
func each(t *testing.T, f func(t *testing.T, b *outboxtest.Bench)) {
	t.Parallel()
	inTurn(t, func(t *testing.T, open func() *outboxtest.Bench) {
		t.Parallel()
		f(t, open())
	})
}

// inTurn is for what concerns all of the process.
func inTurn(t *testing.T, f func(t *testing.T, open func() *outboxtest.Bench)) {
	for name, open := range map[string]func(testing.TB) outboxtest.Database{"SQLite": openSQLite, "PostgreSQL": openPostgres} {
		t.Run(name, func(t *testing.T) { f(t, func() *outboxtest.Bench { return outboxtest.Open(t, open(t)) }) })
	}
}

// S4-08: with many published rows and few that wait, a claim's candidates come
// from the index of unfinished rows, and nothing is scanned. With a backlog
// each partition's part of the index is walked, and no more rows are read than a
// page has.
func TestClaim_S4_08_WalksTheIndex(t *testing.T) {
	b := outboxtest.Open(t, openPostgres(t))
	fill := func(n int, columns, values string) {
		b.Exec(`INSERT INTO outbox (id, message_id, target_broker, stream, stream_category, partition_key, partition, message_type,
			aggregate_type, aggregate_id, aggregate_version, payload, content_type, occurred_at` + columns + `)
			SELECT gen_random_uuid(), gen_random_uuid(), 'default', 's', 'c', 'k' || n, n % 8, 't', 'a', 'k' || n, 1, '\x00', 'application/json', now()` + values +
			fmt.Sprintf(` FROM generate_series(1, %d) AS n`, n))
		b.Exec("ANALYZE outbox")
	}
	w := b.Worker("w1", outboxtest.Partitions, time.Minute)
	// The statement that the store really sends.
	explain := func() string {
		watched, sent := watched(b)
		found, _, err := watched.Peek(t.Context(), outbox.ClaimRequest{Target: "default", Worker: "w1", Leases: w.Leases, Limit: 1})
		require.NoError(t, err)
		require.True(t, found)
		queries := sent.Take()
		require.Len(t, queries, 1)
		var plan []string
		require.NoError(t, b.DB.NewRaw("EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) ?", bun.Safe(queries[0])).Scan(t.Context(), &plan))
		return strings.Join(plan, "\n")
	}
	fill(50_000, ", status, finished_at, published_at", ", 'published', now(), now()")
	b.Insert(outboxtest.Numbered("k", 100)...)
	b.Exec("ANALYZE outbox")
	plan := explain()
	require.NotContains(t, plan, "Seq Scan", plan)
	require.Equal(t, 1, strings.Count(plan, "outbox_unfinished"), plan)

	fill(20_000, "", "")
	plan = explain()
	require.NotContains(t, plan, "Seq Scan", plan)
	require.NotContains(t, plan, "Sort", plan) // not the whole backlog
	require.Contains(t, plan, fmt.Sprintf("loops=%d", outboxtest.Partitions), plan)
	require.NotRegexp(t, `actual rows=\d{4,}`, plan)

	// F-50: also when statistics say that there are many rows with priorities, and
	// there are none any more.
	fill(20_000, ", priority", ", -1")
	b.Exec("UPDATE outbox SET finished_at = now()")
	b.Insert("k")
	plan = explain()
	require.NotContains(t, plan, "Seq Scan", plan)
}

// A claim that leaves locked rows out promises no more: it would be made again and
// again until they are free.
func TestClaim_WhatIsLockedIsNoMore(t *testing.T) {
	b := outboxtest.Open(t, openPostgres(t))
	b.Insert("a")
	w := b.Worker("w1", outboxtest.Partitions, time.Minute)
	tx, err := b.DB.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	_, err = tx.ExecContext(t.Context(), "SELECT FROM outbox FOR UPDATE")
	require.NoError(t, err)
	c, err := b.Claim(t.Context(), w.Request(outbox.ClaimRequest{Target: "default", Worker: "w1", Leases: w.Leases, Limit: 1, MaxAttempts: 5, Careful: true}))
	require.NoError(t, err)
	require.Empty(t, c.Rows)
	require.False(t, c.More)
	require.Zero(t, c.Next)
}

// watched is a bench whose store's queries are kept.
func watched(b *outboxtest.Bench) (*outboxtest.Bench, *outboxtest.Queries) {
	q := &outboxtest.Queries{}
	hooked := b.As.WithQueryHook(q)
	store := outbox.NewStore(hooked, hooked)
	store.Observe(q.Note)
	return &outboxtest.Bench{Store: store, T: b.T, DB: b.DB, As: b.As}, q
}

// The table explains itself to whoever looks at it with psql.
func TestMigrations_EveryColumnHasAComment(t *testing.T) {
	b := outboxtest.Open(t, openPostgres(t))
	var silent []string
	require.NoError(t, b.DB.NewRaw("SELECT column_name FROM information_schema.columns WHERE table_schema = current_schema() AND table_name = 'outbox'"+
		" AND col_description((quote_ident(table_schema) || '.outbox')::regclass, ordinal_position) IS NULL").Scan(t.Context(), &silent))
	require.Empty(t, silent)
}

// B12: a process that was stopped in the middle of its renewal locks rows of
// outbox_partitions, and no other waits for it to start.
func TestStore_B12_StartsWhileARenewalStandsStill(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		if b.DB.Dialect().Name() == dialect.SQLite {
			return // a process that stops there holds the one writer, whatever it writes
		}
		tx, err := b.DB.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		_, err = tx.ExecContext(t.Context(), "UPDATE outbox_partitions SET locked_until = locked_until")
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		n, err := b.EnsurePartitions(ctx, "default")
		require.NoError(t, err)
		require.Equal(t, outboxtest.Partitions, n)
	})
}
