// Package outboxdbtest opens an outbox for a test, on each database.
package outboxdbtest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/rights/rightstest"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

// Partitions is the partition count that [Open] gives a database.
const Partitions = 8

// Database is a database without rows, freshly made for one test.
type Database interface {
	DB() *bun.DB
	Reader() *bun.DB
}

// Owned is a database whose tables belong to another role than the one that works
// with them.
type Owned interface {
	Database
	// Limited is the same database for a role that has an engine's rights. It is
	// called when the tables are there.
	Limited(t testing.TB) Database
}

// SQLite is a file of a test's own, which has the tables already: a process makes them once.
func SQLite(t testing.TB) Database { return dbtest.SQLite(t, dbtest.With(t, outboxdb.Migrations())) }

type limited struct {
	uow.Provider
	cfg postgres.Config
}

func (l limited) Limited(t testing.TB) Database {
	return rightstest.As(t, l.Provider, l.cfg, migrate.Engine, outboxdb.Migrations())
}

// PostgreSQL is a schema of a test's own. Its store works as an engine's role.
func PostgreSQL(t testing.TB) Database { return server(t) }

// App is a migrated schema of PostgreSQL for a role that only saves.
func App(t testing.TB) uow.Provider {
	owner := server(t)
	require.NoError(t, outboxdb.Migrate(t.Context(), owner.DB(), Partitions))
	return rightstest.As(t, owner.Provider, owner.cfg, migrate.App, outboxdb.Migrations())
}

// Pooler is a database behind PgBouncer in transaction mode.
func Pooler(t testing.TB) Database {
	_, through := dbtest.Pooled(t)
	p, err := postgres.Open(t.Context(), postgres.Config{DSN: through, MaxConns: 20})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func server(t testing.TB) limited {
	p, cfg := dbtest.Postgres(t)
	return limited{p, cfg}
}

// Each runs a test on every database, beside others.
func Each(t *testing.T, f func(t *testing.T, b *Bench)) {
	t.Parallel()
	for name, open := range map[string]func(testing.TB) Database{"SQLite": SQLite, "PostgreSQL": PostgreSQL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, Open(t, open(t)))
		})
	}
}

// Bench is a migrated outbox with what tests do to it.
type Bench struct {
	*outboxdb.Store

	T  testing.TB
	DB *bun.DB // as the owner of the tables
	As *bun.DB // as the store has it
}

// Open migrates an empty database.
func Open(t testing.TB, db Database) *Bench {
	t.Helper()
	require.NoError(t, outboxdb.Migrate(t.Context(), db.DB(), Partitions))
	as := db
	if o, ok := db.(Owned); ok {
		as = o.Limited(t)
	}
	return &Bench{Store: outboxdb.New(as.DB(), as.Reader()), T: t, DB: db.DB(), As: as.DB()}
}

// Row is a row for target "default" of the given key, ready to be inserted.
func Row(key string) outbox.Row {
	return outbox.Row{
		ID: newID(), MessageID: newID(), TargetBroker: "default",
		Stream: "ordering::order-" + key, StreamCategory: "ordering::order",
		PartitionKey: key, Partition: outbox.PartitionOf(key, Partitions),
		MessageType: "Ordering.OrderPlaced.v1", AggregateType: "order", AggregateID: key, AggregateVersion: 1,
		Payload: []byte(`{"data":{}}`), ContentType: "application/json", CorrelationID: "c-" + key,
		OccurredAt: time.Date(2026, 1, 2, 3, 4, 5, 678000000, time.UTC),
	}
}

func newID() string { return uuid.Must(uuid.NewV7()).String() }

// Insert stores rows, one per key, in one transaction, and returns them.
func (b *Bench) Insert(keys ...string) []outbox.Row {
	b.T.Helper()
	rows := make([]outbox.Row, len(keys))
	for i, k := range keys {
		rows[i] = Row(k)
		rows[i].AggregateVersion = int64(i + 1)
	}
	b.InsertRows(rows...)
	return rows
}

// InsertRows stores rows in one transaction.
func (b *Bench) InsertRows(rows ...outbox.Row) {
	b.T.Helper()
	query, err := outboxdb.Insert(rows).AppendQuery(b.DB.QueryGen(), nil)
	require.NoError(b.T, err)
	_, err = b.DB.DB.ExecContext(b.T.Context(), string(query))
	require.NoError(b.T, err)
}

// Exec runs SQL of a test's own, as the owner of the tables.
func (b *Bench) Exec(query string, args ...any) {
	b.T.Helper()
	_, err := b.DB.ExecContext(context.WithoutCancel(b.T.Context()), query, args...)
	require.NoError(b.T, err)
}

// Count is the number that a query of a test's own returns.
func (b *Bench) Count(query string, args ...any) (n int64) {
	b.T.Helper()
	require.NoError(b.T, b.DB.QueryRowContext(b.T.Context(), query, args...).Scan(&n))
	return n
}

// SQLite says that this is one.
func (b *Bench) SQLite() bool { return b.DB.Dialect().Name() == dialect.SQLite }

// Numbered are n keys: prefix-0, prefix-1, …
func Numbered(prefix string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s-%d", prefix, i)
	}
	return keys
}
