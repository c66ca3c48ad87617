package outbox_test

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/outbox/outboxtest"
)

// begin opens a transaction that has its number already, as that of a unit of
// work has when it inserts its rows. It ends with the test, if not before.
func begin(t *testing.T, b *outboxtest.Bench) bun.Tx {
	t.Helper()
	tx, err := b.DB.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	_, err = tx.ExecContext(t.Context(), "SELECT pg_current_xact_id()")
	require.NoError(t, err)
	return tx
}

// insertIn stores a row in a transaction and returns its message's id.
func insertIn(t *testing.T, b *outboxtest.Bench, tx bun.Tx, key string) string {
	t.Helper()
	row := outboxtest.Row(key)
	query, err := outbox.Insert([]outbox.Row{row}).AppendQuery(b.DB.QueryGen(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), string(query))
	require.NoError(t, err)
	return row.MessageID
}

// F-01: a transaction that drew a lower seq and commits later than others is not
// passed over.
func TestProcessor_F_01_LateCommitOfALowerSeq(t *testing.T) {
	b := outboxtest.Open(t, openPostgres(t))
	m := memory.New(memory.Config{})
	processor(t, b, quick(), lane(m))
	var late []bun.Tx
	want := map[string][]string{}
	for i := range 3 {
		tx := begin(t, b)
		key := fmt.Sprint("late-", i)
		want[key] = []string{insertIn(t, b, tx, key), insertIn(t, b, tx, key)}
		late = append(late, tx)
		rows := b.Insert("soon", "soon", fmt.Sprint("soon-", i))
		for key, ids := range rowsByKey(rows) {
			want[key] = append(want[key], ids...)
		}
	}
	statuses(t, b, map[outbox.Status]int{outbox.Published: 9})
	slices.Reverse(late)
	for _, tx := range late {
		require.NoError(t, tx.Commit())
	}
	statuses(t, b, map[outbox.Status]int{outbox.Published: 15})
	require.Equal(t, want, byKey(m.Messages(topic)))
	require.Len(t, m.Messages(topic), 15)
}

// F-03: a transaction that stays open, whether it has read or written, holds
// nobody up.
func TestProcessor_F_03_OpenTransactionsHoldNobodyUp(t *testing.T) {
	b := outboxtest.Open(t, openPostgres(t))
	reading, err := b.DB.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer func() { _ = reading.Rollback() }()
	_, err = reading.ExecContext(t.Context(), "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox")
	require.NoError(t, err)
	writing := begin(t, b)
	own := insertIn(t, b, writing, "k-0")

	m := memory.New(memory.Config{})
	m.FailWhere(func(msg broker.Message) error {
		if msg.Key == "bad" {
			return errors.New("not now")
		}
		return nil
	})
	cfg := quick()
	cfg.Retry.BaseDelay = time.Hour
	processor(t, b, cfg, lane(m))
	for range 5 {
		b.Insert("bad")
		b.Insert(outboxtest.Numbered("k", 20)...)
	}
	statuses(t, b, map[outbox.Status]int{outbox.Published: 100, outbox.Failed: 1, outbox.Pending: 4})
	require.NoError(t, writing.Commit())
	statuses(t, b, map[outbox.Status]int{outbox.Published: 101, outbox.Failed: 1, outbox.Pending: 4})
	require.Contains(t, ids(m.Messages(topic)), own)
}

// F-04: nothing in the tables is a number of this cluster's transactions. What
// is copied into another database, with the sequences, goes on there where it
// was.
func TestProcessor_F_04_GoesOnInARestoredDatabase(t *testing.T) {
	from, to := outboxtest.Open(t, openPostgres(t)), outboxtest.Open(t, openPostgres(t))
	var kinds []string
	require.NoError(t, from.DB.NewRaw("SELECT DISTINCT data_type FROM information_schema.columns WHERE table_schema = current_schema() AND table_name LIKE 'outbox%'"+
		" ORDER BY 1").Scan(t.Context(), &kinds))
	require.Equal(t, []string{"bigint", "boolean", "bytea", "integer", "jsonb", "text", "timestamp with time zone", "uuid"}, kinds)

	// Rows in every state, one of them in the hand of a worker that isn't coming
	// back.
	rows := from.Insert("a", "a", "b", "c", "d")
	w := from.Worker("w1", outboxtest.Partitions, time.Second)
	c := w.Claim(5)
	w.Settle(c, outbox.Outcome{Seq: c.Rows[0].Seq, Status: outbox.Published},
		outbox.Outcome{Seq: c.Rows[1].Seq, Status: outbox.Pending, Unspent: true},
		outbox.Outcome{Seq: c.Rows[2].Seq, Status: outbox.Failed, Class: "transient", Error: "x", After: 10 * time.Millisecond},
		outbox.Outcome{Seq: c.Rows[3].Seq, Status: outbox.Abandoned, Class: "permanent", Error: "x"},
		outbox.Outcome{Seq: c.Rows[4].Seq, Status: outbox.Pending, Unspent: true})
	require.Len(t, w.Claim(1).Rows, 1)

	schema := func(b *outboxtest.Bench) (name string) {
		require.NoError(t, b.DB.NewRaw("SELECT current_schema()").Scan(t.Context(), &name))
		return name
	}
	source, target := schema(from), schema(to)
	for _, table := range []string{"outbox", "outbox_partitions", "outbox_workers", "outbox_jobs", "outbox_published"} {
		to.Exec("INSERT INTO " + target + "." + table + " OVERRIDING SYSTEM VALUE SELECT * FROM " + source + "." + table)
	}
	for _, sequence := range []string{"outbox_seq_seq", "outbox_fence_seq", "outbox_claim_seq"} {
		to.Exec("SELECT setval('" + target + "." + sequence + "', last_value, is_called) FROM " + source + "." + sequence)
	}
	m := memory.New(memory.Config{})
	processor(t, to, quick(), lane(m))
	more := to.Insert("a", "b")
	statuses(t, to, map[outbox.Status]int{outbox.Published: 6, outbox.Abandoned: 1})
	require.Equal(t, map[string][]string{
		"a": {rows[1].MessageID, more[0].MessageID}, "b": {rows[2].MessageID, more[1].MessageID}, "d": {rows[4].MessageID},
	}, byKey(m.Messages(topic)))
}

// A41, D7: 1,000 events of one aggregate, over eight workers of two processes,
// arrive in order, also past failures in the middle.
func TestProcessor_A41_D7_OneAggregateInOrder(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		var rows []outbox.Row
		for i := range 1000 {
			row := outboxtest.Row("one")
			row.AggregateVersion = int64(i + 1)
			rows = append(rows, row)
		}
		m := memory.New(memory.Config{})
		var refusals atomic.Int64
		m.FailWhere(func(msg broker.Message) error {
			if msg.ID == rows[500].MessageID && refusals.Add(1) <= 2 {
				return errors.New("not now")
			}
			return nil
		})
		cfg := quick()
		cfg.Workers, cfg.BatchSize = 4, 120
		cfg.PollInterval, cfg.MaxPollInterval, cfg.Lease = 200*time.Millisecond, time.Second, 15*time.Second
		first, second := processor(t, b, cfg, lane(m)), processor(t, b, cfg, lane(m))
		for part := range slices.Chunk(rows, 250) {
			b.InsertRows(part...)
		}
		require.Eventually(t, func() bool {
			return first.Status()["default"].Published+second.Status()["default"].Published == 1000
		}, 2*time.Minute, 10*time.Millisecond)
		statuses(t, b, map[outbox.Status]int{outbox.Published: 1000})
		var want []string
		for _, row := range rows {
			want = append(want, row.MessageID)
		}
		require.Equal(t, want, ids(m.Messages(topic)))
		require.EqualValues(t, 3, refusals.Load())
		for i, e := range b.Entries() {
			attempts := 1
			if i == 500 {
				attempts = 3
			}
			require.Equal(t, attempts, e.Attempts, "F-34: of row %d", i)
		}
	})
}
