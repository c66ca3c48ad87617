package relay_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/outbox"
)

// begin opens a transaction that has its number already, as that of a unit of
// work has when it inserts its rows. It ends with the test, if not before.
func begin(t *testing.T, b *outboxdbtest.Bench) bun.Tx {
	t.Helper()
	tx, err := b.DB.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	_, err = tx.ExecContext(t.Context(), "SELECT pg_current_xact_id()")
	require.NoError(t, err)
	return tx
}

// insertIn stores a row in a transaction and returns its message's id.
func insertIn(t *testing.T, b *outboxdbtest.Bench, tx bun.Tx, key string) string {
	t.Helper()
	row := outboxdbtest.Row(key)
	query, err := outboxdb.Insert([]outbox.Row{row}).AppendQuery(b.DB.QueryGen(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), string(query))
	require.NoError(t, err)
	return row.MessageID
}

// F-01: a transaction that drew a lower seq and commits later than others is not
// passed over.
func TestProcessor_F_01_LateCommitOfALowerSeq(t *testing.T) {
	t.Parallel()
	b := outboxdbtest.Open(t, outboxdbtest.PostgreSQL(t))
	m := memory.New(memory.Config{})
	processor(t, b, quick(), to(m))
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
	require.Equal(t, want, byKey(m.Messages(orders)))
	require.Len(t, m.Messages(orders), 15)
}

// F-03: a transaction that stays open, whether it has read or written, holds
// nobody up.
// Conformance: U-02.
func TestProcessor_F_03_OpenTransactionsHoldNobodyUp(t *testing.T) {
	t.Parallel()
	b := outboxdbtest.Open(t, outboxdbtest.PostgreSQL(t))
	reading, err := b.DB.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer func() { _ = reading.Rollback() }()
	_, err = reading.ExecContext(t.Context(), "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox")
	require.NoError(t, err)
	_, _, err = b.Lanes(t.Context(), []string{target}) // who writes its first row makes the lane
	require.NoError(t, err)
	writing := begin(t, b)
	own := insertIn(t, b, writing, "k-0")

	m := memory.New(memory.Config{})
	failKey(m, "bad", refuse("not now"))
	cfg := quick()
	cfg.Retry.BaseDelay = time.Hour
	processor(t, b, cfg, to(m))
	for range 5 {
		b.Insert("bad")
		b.Insert(outboxdbtest.Numbered("k", 20)...)
	}
	statuses(t, b, map[outbox.Status]int{outbox.Published: 100, outbox.Failed: 1, outbox.Pending: 4})
	require.NoError(t, writing.Commit())
	statuses(t, b, map[outbox.Status]int{outbox.Published: 101, outbox.Failed: 1, outbox.Pending: 4})
	require.Contains(t, ids(m.Messages(orders)), own)
}

// F-04: nothing in the tables is a number of this cluster's transactions. What
// is copied into another database, with the sequences, goes on there where it
// was.
// Conformance: U-03.
func TestProcessor_F_04_GoesOnInARestoredDatabase(t *testing.T) {
	t.Parallel()
	from, copied := outboxdbtest.Open(t, outboxdbtest.PostgreSQL(t)), outboxdbtest.Open(t, outboxdbtest.PostgreSQL(t))
	var kinds []string
	require.NoError(t, from.DB.NewRaw("SELECT DISTINCT udt_name FROM information_schema.columns WHERE table_schema = current_schema() AND table_name LIKE 'outbox%'"+
		" ORDER BY 1").Scan(t.Context(), &kinds))
	require.Equal(t, []string{"_int2", "_int8", "bool", "bytea", "int2", "int4", "int8", "jsonb", "text", "timestamptz", "uuid"}, kinds)

	// Rows in every state, one of them in the hand of a member that isn't coming back.
	rows := from.Insert("a", "a", "b", "c", "d")
	w := from.Join("w1", time.Second, outboxdbtest.Partitions)
	c := w.ClaimAll()
	settlement := w.Settlement(c[0])
	settlement.Failed = []relay.Failure{{RowRef: c[2].Ref(), Attempts: 1, DueIn: 10 * time.Millisecond, Class: "transient", Error: "x"}}
	settlement.Abandoned = []relay.Abandonment{{RowRef: c[3].Ref(), Class: "permanent", Error: "x", Attempts: 1}}
	require.True(t, w.Settle(settlement))
	require.Len(t, w.Claim(w.Look(10)[0]), 1)

	schema := func(b *outboxdbtest.Bench) (name string) {
		require.NoError(t, b.DB.NewRaw("SELECT current_schema()").Scan(t.Context(), &name))
		return name
	}
	list := func(query string) (names []string) {
		require.NoError(t, from.DB.NewRaw(query).Scan(t.Context(), &names))
		require.NotEmpty(t, names)
		return names
	}
	source, aim := schema(from), schema(copied)
	for _, table := range list("SELECT tablename FROM pg_tables WHERE schemaname = current_schema() AND tablename LIKE 'outbox%' ORDER BY 1") {
		copied.Exec("DELETE FROM " + table)
		copied.Exec("INSERT INTO " + aim + "." + table + " OVERRIDING SYSTEM VALUE SELECT * FROM " + source + "." + table)
	}
	for _, sequence := range list("SELECT sequencename FROM pg_sequences WHERE schemaname = current_schema() AND sequencename LIKE 'outbox%'") {
		copied.Exec("SELECT setval('" + aim + "." + sequence + "', last_value, is_called) FROM " + source + "." + sequence)
	}
	m := memory.New(memory.Config{})
	processor(t, copied, quick(), to(m))
	more := copied.Insert("a", "b")
	statuses(t, copied, map[outbox.Status]int{outbox.Published: 6, outbox.Abandoned: 1})
	require.Equal(t, map[string][]string{
		"a": {rows[1].MessageID, more[0].MessageID}, "b": {rows[2].MessageID, more[1].MessageID}, "d": {rows[4].MessageID},
	}, byKey(m.Messages(orders)))
}

// A41, D7: 1,000 events of one aggregate, over two processes with several calls each,
// arrive in order, also past failures in the middle.
func TestProcessor_A41_D7_OneAggregateInOrder(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		var rows []outbox.Row
		for i := range 1000 {
			row := outboxdbtest.Row("one")
			row.AggregateVersion = int64(i + 1)
			rows = append(rows, row)
		}
		m := memory.New(memory.Config{})
		refuseFirst(2, m, func(msg broker.Message) bool { return msg.ID == rows[500].MessageID })
		cfg := quick()
		cfg.Calls, cfg.BatchSize = 4, 120
		cfg.PollInterval, cfg.MaxPollInterval, cfg.Lease = 200*time.Millisecond, time.Second, 15*time.Second
		first, log := logged(t, b, cfg, to(m))
		second := processor(t, b, cfg, to(m))
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("%+v\n%+v\n%s", first.Status()[target], second.Status()[target], log.String())
			}
		})
		for part := range slices.Chunk(rows, 250) {
			b.InsertRows(part...)
		}
		eventually(t, func() bool {
			return first.Status()[target].Published+second.Status()[target].Published == 1000
		}, "all are published")
		statuses(t, b, map[outbox.Status]int{outbox.Published: 1000})
		var want []string
		for _, row := range rows {
			want = append(want, row.MessageID)
		}
		require.Equal(t, want, ids(m.Messages(orders)))
		for i, e := range entries(t, b) {
			attempts := 1
			if i == 500 {
				attempts = 3
			}
			require.Equal(t, attempts, e.Attempts, "F-34: of row %d", i)
		}
	})
}
