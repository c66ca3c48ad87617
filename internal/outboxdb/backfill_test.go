package outboxdb_test

import (
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/outbox"
)

// body is what the context's own broker gets of an event.
func body(id string) []byte {
	return fmt.Appendf(nil, `{"data":{"n":1},"metadata":{"headers":{"id":%q,"type":"Ordering.OrderPlaced.v1","time":"2026-01-02T03:04:05.678Z","stream":"ordering::order-a","traceparent":null},`+
		`"envelope":{"specversion":"1.0","checksum":"sha256:%x"},"domain":{"context":"ordering","kind":"EVENT","aggregate":"order","aggregate_id":"a","stream_category":"ordering::order","version":1,`+
		`"sequence_id":"3.1","correlation_id":null,"causation_id":null,"expected_version":2,"asynchronous":true,"priority":0},"event_store":{"position":3,"global_position":null},"extensions":{}}}`, id, sha256.Sum256([]byte(`{"n":1}`)))
}

// A target that joins gets earlier events, too, once, in their order, also
// those that were published; then it is like all others.
func TestBackfillCopiesTheHistory(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		const n = 7
		for i := range n {
			r := outboxdbtest.Row(fmt.Sprint("k", i))
			r.Payload = body(r.MessageID)
			b.InsertRows(r)
		}
		publishEach(b.Join("host-1-w1", time.Minute, outboxdbtest.Partitions))
		had, err := b.Find(t.Context(), outbox.Filter{Seqs: []int64{2}})
		require.NoError(t, err)
		again := had[0].Row
		again.TargetBroker, again.ID, again.Payload = "partner", outboxdbtest.Row("x").ID, []byte("{}")
		b.InsertRows(again) // from a time when it was a target before

		require.NoError(t, outboxdb.InitTargets(t.Context(), b.DB, "ordering", outbox.Targets{Broker: "default"}))
		f := outbox.Backfill{Context: "ordering", Target: outbox.Target{Broker: "partner"}}
		_, err = b.Backfill(t.Context(), f)
		require.ErrorContains(t, err, "back-fill of partner: Actor is missing")
		f.Actor = "alice"
		_, err = b.Backfill(t.Context(), f)
		require.ErrorContains(t, err, "and not to partner")
		joining := outbox.Targets{Broker: "default", External: []string{"partner"}, Joining: []string{"partner"}}
		require.NoError(t, outboxdb.SetTargets(t.Context(), b.DB, "ordering", joining, "mia"))
		_, err = b.BackfillAtOnce(t.Context(), f)
		require.ErrorContains(t, err, "does not know which events of context ordering are published")
		require.NoError(t, outboxdb.WritePublished(t.Context(), b.DB, "ordering", []string{"OrderPlaced"}))

		count, err := b.CountBackfill(t.Context(), f)
		require.NoError(t, err)
		require.EqualValues(t, n-1, count.Events)
		done, err := b.BackfillAtOnce(t.Context(), f)
		require.NoError(t, err)
		require.EqualValues(t, n-1, done.Events)
		require.EqualValues(t, n, b.Count("SELECT count(*) FROM outbox WHERE target_broker = 'partner' AND status = 'pending'"))
		require.Zero(t, b.Count("SELECT count(*) FROM outbox AS a JOIN outbox AS b ON b.seq > a.seq WHERE a.target_broker = 'partner' AND b.target_broker = 'partner'"+
			" AND a.seq > ? AND b.seq > ? AND a.partition_key > b.partition_key", n+1, n+1), "in their order")
		have, found, err := outboxdb.FindTargets(t.Context(), b.DB, "ordering")
		require.NoError(t, err)
		require.True(t, found)
		require.Empty(t, have.Joining)
		require.Zero(t, b.Count("SELECT count(*) FROM outbox_settings WHERE name LIKE 'backfill:%'"))
		done, err = b.BackfillAtOnce(t.Context(), f)
		require.NoError(t, err)
		require.Zero(t, done.Events, "it is live")
		actions, err := b.Actions(t.Context(), 10)
		require.NoError(t, err)
		require.Len(t, actions, 2, "who changed nothing is not on record, after who made it join")
		require.Equal(t, []any{"alice", "backfill", int64(n - 1)}, []any{actions[0].Actor, actions[0].Action, actions[0].Rows})
		require.JSONEq(t, `{"context": "ordering", "target": "partner", "live": true}`, string(actions[0].Filter))
	})
}
