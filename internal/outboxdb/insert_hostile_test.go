package outboxdb_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

// hostile are texts that mean something to SQL, to arrays, to JSON or to who formats
// them, in every field that takes one.
func hostile() (rows []outbox.Row) {
	for i, text := range []string{
		`o'1'' \' \ " ; DROP TABLE outbox_messages; -- /* $1 $$ ? ?0`, `{"a",NULL,\"}`, `{}`, "NULL", `\N`, `E'\000'`, `%s%d%`, " ", "\n\r\t\x01\x7f\x1f",
		"é東🚚\u2028\u202e\ufeff\ufffd", "👩‍👩‍👧‍👦", `"`, `\`, "'", ",", "e\u0301", strings.Repeat("long'🚚\\", 20_000),
	} {
		r := outboxdbtest.Row(text)
		for _, field := range []*string{
			&r.Stream, &r.StreamCategory, &r.Topic, &r.MessageType, &r.AggregateType, &r.AggregateID, &r.ContentType,
			&r.CloudEvent, &r.CorrelationID, &r.CausationID, &r.TenantID, &r.Traceparent,
		} {
			*field = text
		}
		r.AggregateVersion = int64(i)
		r.Payload = []byte("\x00\xff\xfe'\\" + text + "\x00")
		rows = append(rows, r)
	}
	return rows
}

// sent is what a claim reads of a row: what its message is made of.
func sent(r outbox.Row) outbox.Row {
	r.ID, r.TargetBroker, r.Stream, r.AggregateType, r.AggregateID, r.AggregateVersion, r.CausationID, r.Priority = "", "", "", "", "", 0, "", 0
	return r
}

// S4-07: what is inserted is what a claim reads, whatever is in the texts.
func TestInsert_S4_07_HostileTextsComeBack(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		rows := hostile()
		b.InsertRows(rows...)
		claimed := b.Join("w1", time.Minute, outboxdbtest.Partitions).ClaimAll()
		require.Len(t, claimed, len(rows))
		for i, c := range claimed {
			c.OccurredAt = c.OccurredAt.UTC()
			require.Equal(t, sent(rows[i]), c.Row, rows[i].PartitionKey[:1])
			found, err := b.Find(t.Context(), outbox.Filter{Seqs: []int64{c.Seq}})
			require.NoError(t, err)
			require.Len(t, found, 1)
			stored := found[0].Row
			stored.Payload, stored.OccurredAt = rows[i].Payload, stored.OccurredAt.UTC()
			require.Equal(t, rows[i], stored)
			require.Equal(t, outbox.KeyOf("default", rows[i].Topic, rows[i].StreamCategory, rows[i].PartitionKey), c.KeyHash)
		}
	})
}

// S4-07: the prepared form, as values, has them as they are, too.
func TestInsert_S4_07_HostileTextsComeBackPrepared(t *testing.T) {
	p := outboxdbtest.App(t)
	rows := hostile()
	require.NoError(t, p.Session().Commit(t.Context(), []uow.Statement{{Query: outboxdb.Insert(rows), Rows: -1}}))
	const columns = "stream, stream_category, topic, partition_key, message_type, aggregate_type, aggregate_id, content_type, cloud_event, correlation_id, causation_id, tenant_id, traceparent"
	for i, r := range rows {
		var payload []byte
		require.NoError(t, p.DB().NewRaw("SELECT payload FROM outbox WHERE aggregate_version = ?", i).Scan(t.Context(), &payload))
		require.Equal(t, r.Payload, payload)
		for column := range strings.SplitSeq(columns, ", ") {
			var text string
			require.NoError(t, p.DB().NewRaw(fmt.Sprintf("SELECT %s FROM outbox WHERE aggregate_version = ?", column), i).Scan(t.Context(), &text))
			require.Equal(t, r.PartitionKey, text, column)
		}
	}
}
