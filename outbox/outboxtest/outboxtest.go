// Package outboxtest is the conformance suite for the outbox on a database: it
// runs over every provider.
package outboxtest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/outbox"
)

// Database is what the suite needs of a provider: its two handles, freshly made
// for one test.
type Database interface {
	DB() *bun.DB
	Reader() *bun.DB
}

// Owned is a database that the suite works with as a role that doesn't own its
// tables: only what tests do past the store is done as their owner.
type Owned interface {
	Database
	// Limited is the same database for a role that has an engine's rights. It is
	// called when the tables are there.
	Limited(t testing.TB) Database
}

// Partitions is the partition count that [Open] gives a database.
const Partitions = 8

// Bench is a migrated outbox with what tests do to it.
type Bench struct {
	*outbox.Store
	T  testing.TB
	DB *bun.DB // as the owner of the tables
	As *bun.DB // as the store has it
}

// Open migrates an empty database.
func Open(t testing.TB, db Database) *Bench {
	t.Helper()
	require.NoError(t, outbox.Migrate(t.Context(), db.DB(), Partitions))
	as := db
	if o, ok := db.(Owned); ok {
		as = o.Limited(t)
	}
	return &Bench{Store: outbox.NewStore(as.DB(), as.Reader()), T: t, DB: db.DB(), As: as.DB()}
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
	query, err := outbox.Insert(rows).AppendQuery(b.DB.QueryGen(), nil)
	require.NoError(b.T, err)
	_, err = b.DB.ExecContext(b.T.Context(), string(query))
	require.NoError(b.T, err)
}

// insertMany stores rows in transactions of a size that both databases take.
func (b *Bench) insertMany(keys ...string) {
	b.T.Helper()
	for part := range slices.Chunk(keys, 1000) {
		b.Insert(part...)
	}
}

// Worker acquires n partitions of target "default".
func (b *Bench) Worker(name string, n int, ttl time.Duration) Worker {
	b.T.Helper()
	_, err := b.EnsurePartitions(b.T.Context(), "default")
	require.NoError(b.T, err)
	leases, _, err := b.Acquire(b.T.Context(), Owner(name, ttl), n)
	require.NoError(b.T, err)
	return Worker{bench: b, Name: name, Target: "default", Leases: leases, Flights: &Flights{}}
}

// Owner is a worker of target "default".
func Owner(name string, ttl time.Duration) outbox.Owner {
	return outbox.Owner{Target: "default", Worker: name, Lease: ttl, Abandoned: time.Hour}
}

// Worker is somebody with leases.
type Worker struct {
	bench  *Bench
	Name   string
	Target string
	Leases []outbox.Lease
	*Flights
}

// Claim takes up to limit rows.
func (w Worker) Claim(limit int) outbox.Claim {
	w.bench.T.Helper()
	c, err := w.bench.Claim(w.bench.T.Context(), w.Request(outbox.ClaimRequest{
		Target: w.Target, Worker: w.Name, Leases: w.Leases, Limit: limit, MaxAttempts: 5,
	}))
	require.NoError(w.bench.T, err)
	w.Took(c)
	return c
}

// Settle writes outcomes back and returns how many came too late.
func (w Worker) Settle(c outbox.Claim, outcomes ...outbox.Outcome) int {
	w.bench.T.Helper()
	stale, err := w.bench.Settle(w.bench.T.Context(), outbox.Settlement{
		Claim: c.ID, Target: w.Target, Outcomes: outcomes, Retention: outbox.Config{}.WithDefaults().Retention,
	})
	require.NoError(w.bench.T, err)
	w.Landed(c.ID, outcomes, stale)
	return stale
}

// All gives every row of a claim the same outcome.
func All(c outbox.Claim, o outbox.Outcome) []outbox.Outcome {
	var all []outbox.Outcome
	for _, row := range c.Rows {
		o.Seq = row.Seq
		all = append(all, o)
	}
	return all
}

// Keys are the keys of a claim's rows, in order.
func Keys(c outbox.Claim) []string {
	keys := []string{}
	for _, row := range c.Rows {
		keys = append(keys, row.Message.Key)
	}
	return keys
}

// Entries are all rows, in order.
func (b *Bench) Entries() []outbox.Entry {
	b.T.Helper()
	entries, err := b.Find(b.T.Context(), outbox.Filter{Limit: 100000})
	require.NoError(b.T, err)
	return entries
}

// Statuses are the statuses of all rows, in order.
func (b *Bench) Statuses() []outbox.Status {
	b.T.Helper()
	var statuses []outbox.Status
	for _, e := range b.Entries() {
		statuses = append(statuses, e.Status)
	}
	return statuses
}

// Expire ends every lease, as time would.
func (b *Bench) Expire() {
	b.T.Helper()
	b.Exec("UPDATE outbox_partitions SET locked_until = " + past(b.DB))
}

// Exec runs SQL of a test's own.
func (b *Bench) Exec(query string, args ...any) {
	b.T.Helper()
	_, err := b.DB.ExecContext(context.WithoutCancel(b.T.Context()), query, args...)
	require.NoError(b.T, err)
}

func (b *Bench) sqlite() bool { return b.DB.Dialect().Name().String() == "sqlite" }

func past(db *bun.DB) string {
	if db.Dialect().Name().String() == "sqlite" {
		return "strftime('%Y-%m-%dT%H:%M:%fZ','now','-1 hours')"
	}
	return "clock_timestamp() - interval '1 hour'"
}

// Numbered are n keys: prefix-0, prefix-1, …
func Numbered(prefix string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s-%d", prefix, i)
	}
	return keys
}
