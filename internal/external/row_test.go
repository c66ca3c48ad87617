package external

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/outbox"
)

// S1-21: a row as it is created: id, type, JSON body, time in UTC, no attempt,
// pending.
func TestRow_S1_21_AsItIsCreated(t *testing.T) {
	w := newWorld(t)
	m := w.units(outbox.Target{Broker: "partner"})
	w.place(domain.WithOrigin(t.Context(), domain.Origin{CorrelationID: "c-1"}), m, "o-1", "x")
	rows := w.find(outbox.Filter{})
	require.Len(t, rows, 5)
	for i, r := range rows {
		id, err := uuid.Parse(r.MessageID)
		require.NoError(t, err)
		require.EqualValues(t, 7, id.Version())
		want := "Ordering.NoteAdded.v1"
		if i < 2 {
			want = "Ordering.OrderPlaced.v1"
		}
		require.Equal(t, want, r.MessageType)
		require.Equal(t, "application/json", r.ContentType)
		require.Equal(t, outbox.Pending, r.Status)
		require.Zero(t, r.Attempts)
		require.Nil(t, r.PublishedAt)
		require.WithinDuration(t, time.Now(), r.OccurredAt, time.Minute)
	}
	var bodies [][]byte
	require.NoError(t, w.db.DB().NewRaw("SELECT payload FROM outbox").Scan(t.Context(), &bodies))
	require.Len(t, bodies, 5)
	for _, body := range bodies {
		require.True(t, json.Valid(body))
		require.Regexp(t, `"time":"[-0-9]+T[:0-9]+\.[0-9]{6}Z"`, string(body))
	}
}

// S1-22, A62: where a message goes follows from its category, and a target may say
// otherwise. Its key is the aggregate's id everywhere.
func TestRow_S1_22_A62_RoutesAndKeys(t *testing.T) {
	w := newWorld(t)
	m := w.units(
		outbox.Target{Broker: "usual"},
		outbox.Target{Broker: "mapped", Topics: map[string]string{"ordering::order": "all-orders"}, Envelope: outbox.CloudEvents},
		outbox.Target{Broker: "nats", Topics: map[string]string{"ordering::order": "eu.orders"}},
	)
	w.run(w.engine(map[string]broker.Broker{
		"usual": broker.Prefixed(w.kafka, "usual."), "mapped": broker.Prefixed(w.kafka, "mapped."), "nats": broker.Prefixed(w.nats, "nats."),
	}, m))
	w.place(t.Context(), m, "o-1", "x")
	w.settled(4 + 3)
	require.Equal(t, "o-1", w.fromKafka("usual.ordering.order").key)
	require.Equal(t, "o-1", w.fromKafka("mapped.all-orders").key)
	require.Equal(t, "o-1", w.fromNATS("nats.eu.orders").headers["key"])
}
