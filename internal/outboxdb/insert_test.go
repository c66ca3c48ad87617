package outboxdb_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

// A row becomes a body and a queue row with its hashes, its bytes and the sign of its
// priority; a target that is new becomes a lane.
func TestInsert_BodiesAndQueueRowsInTheirOrder(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		var rows []outbox.Row
		for i, key := range outboxdbtest.Numbered("it's", 40) {
			r := outboxdbtest.Row(key)
			r.Priority = i%3*7 - 7
			if i%2 == 0 {
				r.TargetBroker, r.Topic, r.CloudEvent = "partner", "public", `{"a":"b"}`
			}
			rows = append(rows, r)
		}
		b.InsertRows(rows...)
		b.InsertRows(outboxdbtest.Row("later"))
		require.EqualValues(t, 2, b.Count("SELECT count(*) FROM outbox_lanes"))
		var n int
		got, err := b.DB.QueryContext(t.Context(), "SELECT m.seq, l.target, q.part, q.key, q.topic, q.class, q.bytes, m.partition_key, m.cloud_event"+
			" FROM outbox_queue AS q JOIN outbox_messages AS m ON m.seq = q.seq AND m.lane = q.lane AND m.part = q.part AND m.key = q.key JOIN outbox_lanes AS l ON l.id = q.lane ORDER BY m.seq")
		require.NoError(t, err)
		defer func() { require.NoError(t, got.Close()) }()
		for ; got.Next() && n < len(rows); n++ {
			r := rows[n]
			var seq, key, topic int64
			var part, class, bytes int
			var target, partitionKey string
			var cloudEvent *string
			require.NoError(t, got.Scan(&seq, &target, &part, &key, &topic, &class, &bytes, &partitionKey, &cloudEvent))
			to := r.Topic
			if to == "" {
				to = "ordering.order"
			}
			require.Equal(t, r.PartitionKey, partitionKey)
			require.Equal(t, r.TargetBroker, target)
			require.Equal(t, r.Partition, part)
			require.Equal(t, outbox.KeyOf(target, to, r.StreamCategory, r.PartitionKey), key)
			require.Equal(t, outbox.TopicHash(to), topic)
			require.Equal(t, n%3-1, class)
			require.Greater(t, bytes, len(r.Payload)+len(r.PartitionKey))
			require.Equal(t, n%2 == 0, cloudEvent != nil)
		}
		require.NoError(t, got.Err())
		require.Equal(t, len(rows), n)
	})
}

// The prepared form does the same, as a role that may only save.
func TestInsert_Prepared(t *testing.T) {
	p := outboxdbtest.App(t)
	for _, n := range []int{1, 16, 17} {
		rows := make([]outbox.Row, n)
		for i := range rows {
			rows[i] = outboxdbtest.Row("k")
		}
		require.NoError(t, p.Session().Commit(t.Context(), []uow.Statement{{Query: outboxdb.Insert(rows), Rows: -1}}))
	}
	for _, table := range []string{"outbox_queue", "outbox_messages"} {
		var n int
		require.NoError(t, p.DB().NewRaw("SELECT count(*) FROM "+table).Scan(t.Context(), &n))
		require.Equal(t, 34, n)
	}
}

// O18: no index has a text, so none is too long for it.
func TestInsert_O18_LongKeysThatDoNotCompress(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		random := rand.New(rand.NewPCG(1, 2))
		var long strings.Builder
		for range 9000 {
			long.WriteByte("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"[random.IntN(64)])
		}
		r := outboxdbtest.Row(long.String())
		r.Topic = long.String()
		b.InsertRows(r)
		require.EqualValues(t, 1, b.Count("SELECT count(*) FROM outbox_queue"))
	})
}

// A text that no database can store is an error that names the field.
func TestInsert_RefusesWhatIsNoText(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		for want, value := range map[string]string{"NUL byte": "a\x00b", "UTF-8": "\xff"} {
			r := outboxdbtest.Row("k")
			r.CausationID = value
			_, err := outboxdb.Insert([]outbox.Row{r}).AppendQuery(b.DB.QueryGen(), nil)
			require.ErrorContains(t, err, "causation_id")
			require.ErrorContains(t, err, want)
		}
		_, err := outboxdb.Insert(nil).AppendQuery(b.DB.QueryGen(), nil)
		require.ErrorContains(t, err, "no rows")
	})
}

// insert stores rows in a test's own transaction.
func insert(t *testing.T, tx bun.Tx, rows ...outbox.Row) {
	t.Helper()
	query, err := outboxdb.Insert(rows).AppendQuery(schema.NewQueryGen(tx.Dialect()), nil)
	require.NoError(t, err)
	_, err = tx.Tx.ExecContext(t.Context(), string(query))
	require.NoError(t, err)
}

// What is planned for a large unit of work doesn't grow with its rows: their lanes are
// found once for each target. The rows stay in their order.
func TestInsert_ThousandsOfRowsInOneStatement(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		targets := []string{"default", "it's a partner", "another"}
		rows := make([]outbox.Row, 3000)
		for i := range rows {
			rows[i] = outboxdbtest.Row("a")
			rows[i].AggregateVersion, rows[i].TargetBroker = int64(i), targets[i%len(targets)]
		}
		query, err := outboxdb.Insert(rows).AppendQuery(b.DB.QueryGen(), nil)
		require.NoError(t, err)
		if !b.SQLite() {
			require.Equal(t, len(targets), strings.Count(string(query), "FROM outbox_lanes"))
		}
		b.InsertRows(rows...)
		for i, target := range targets {
			require.EqualValues(t, 1000, b.Count("SELECT count(*) FROM outbox WHERE target_broker = ? AND aggregate_version % 3 = ?", target, i))
		}
		require.Zero(t, b.Count("SELECT count(*) FROM (SELECT aggregate_version - lag(aggregate_version) OVER (ORDER BY seq) AS step FROM outbox_messages) AS o WHERE step <> 1"))
		require.EqualValues(t, 3000, b.Count("SELECT count(*) FROM outbox_queue"))
	})
}
