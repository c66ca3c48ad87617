package outbox

import (
	"fmt"
	"testing"
	"time"
	"unsafe"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
)

type (
	writerOrder   struct{ domain.Root }
	writerInvoice struct{ domain.Root }

	OrderPlaced    struct{ OrderID string }
	OrderCancelled struct{ OrderID string }
	NoteAdded      struct{ Text string }
	InvoiceSent    struct{ InvoiceID string }
	StockReserved  struct{ OrderID string }
)

var writerDomain = domain.MustNew("ordering",
	domain.Aggregate[*writerOrder]("order",
		domain.Event[OrderPlaced](domain.Published()),
		domain.Event[OrderCancelled](domain.Published()),
		domain.Event[NoteAdded](),
	),
	domain.Aggregate[*writerInvoice]("invoice", domain.Event[InvoiceSent](domain.Published())),
	domain.Foreign[StockReserved]("Inventory.StockReserved.v1"),
)

func orderEvent(name string) Event {
	e := fullEvent()
	e.Type = "Ordering." + name + ".v1"
	return e
}

func targetsOf(rows []Row) (targets []string) {
	for _, r := range rows {
		targets = append(targets, r.MessageType+" to "+r.TargetBroker)
	}
	return targets
}

// A53, A54, A55, S3-09: one row for the context's own broker, and one per
// external broker if the event is published.
func TestRows_A53_A54_A55_S309_OnePerTarget(t *testing.T) {
	events := []Event{orderEvent("OrderPlaced"), orderEvent("NoteAdded")}
	two := Writer{Domain: writerDomain, Internal: "default", External: []Target{{Broker: "a"}, {Broker: "b"}}}
	rows, err := two.Rows(events, 64)
	require.NoError(t, err)
	require.Equal(t, []string{
		"Ordering.OrderPlaced.v1 to default", "Ordering.OrderPlaced.v1 to a", "Ordering.OrderPlaced.v1 to b",
		"Ordering.NoteAdded.v1 to default",
	}, targetsOf(rows))

	none := Writer{Domain: writerDomain, Internal: "own"}
	rows, err = none.Rows(events, 64)
	require.NoError(t, err)
	require.Equal(t, []string{"Ordering.OrderPlaced.v1 to own", "Ordering.NoteAdded.v1 to own"}, targetsOf(rows))
}

func TestRows_TargetNamesItsEvents(t *testing.T) {
	w := Writer{Domain: writerDomain, Internal: "default", External: []Target{
		{Broker: "a", Events: []string{"OrderCancelled"}},
		{Broker: "b", Events: []string{"OrderPlaced", "OrderCancelled"}},
		// Check refuses this; an event that isn't published doesn't leave all the same.
		{Broker: "c", Events: []string{"NoteAdded"}},
	}}
	rows, err := w.Rows([]Event{orderEvent("OrderPlaced"), orderEvent("OrderCancelled"), orderEvent("NoteAdded")}, 64)
	require.NoError(t, err)
	require.Equal(t, []string{
		"Ordering.OrderPlaced.v1 to default", "Ordering.OrderPlaced.v1 to b",
		"Ordering.OrderCancelled.v1 to default", "Ordering.OrderCancelled.v1 to a", "Ordering.OrderCancelled.v1 to b",
		"Ordering.NoteAdded.v1 to default",
	}, targetsOf(rows))
}

// S4-07, S4-16, A6: the content of a row. Its native header fields are content
// type, type, correlation, tenant, time and trace.
// Conformance: F-10, S4-16.
func TestRows_S407_A6_Content(t *testing.T) {
	e := orderEvent("OrderPlaced")
	w := Writer{Domain: writerDomain, Internal: "default", External: []Target{
		{Broker: "partner"},
		{Broker: "named", Extensions: []string{"tenant_id"}, Topics: map[string]string{"ordering::order": "orders.eu", "ordering::invoice": "x"}},
	}}
	rows, err := w.Rows([]Event{e}, 64)
	require.NoError(t, err)
	require.Len(t, rows, 3)

	seen := map[string]bool{e.ID: true}
	for i := range rows {
		id, err := uuid.Parse(rows[i].ID)
		require.NoError(t, err)
		require.EqualValues(t, 7, id.Version())
		require.False(t, seen[rows[i].ID])
		seen[rows[i].ID] = true
		rows[i].ID = ""
	}
	want := Row{
		MessageID:        e.ID,
		TargetBroker:     "default",
		Stream:           "ordering::order-o1",
		StreamCategory:   "ordering::order",
		PartitionKey:     "o1",
		Partition:        PartitionOf("o1", 64),
		MessageType:      "Ordering.OrderPlaced.v1",
		AggregateType:    "order",
		AggregateID:      "o1",
		AggregateVersion: 3,
		Payload:          internalBody(e),
		ContentType:      "application/json",
		CorrelationID:    "0198c9a8-7c1e-7a52-9f0b-000000000001",
		CausationID:      "0198c9a8-7c1e-7a52-9f0b-000000000002",
		TenantID:         "acme",
		Traceparent:      "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		Priority:         -50,
		OccurredAt:       time.Date(2026, 6, 30, 22, 30, 0, 0, time.UTC),
	}
	require.Equal(t, want, rows[0])

	// The tenant doesn't leave, not even as a native header, unless it is named.
	want.TargetBroker, want.TenantID, want.Payload = "partner", "", externalBody(e, w.External[0])
	require.Equal(t, want, rows[1])
	want.TargetBroker, want.TenantID, want.Payload = "named", "acme", externalBody(e, w.External[1])
	want.Topic = "orders.eu"
	require.Equal(t, want, rows[2])
}

// A7: two events of one save keep their order and have ids of their own.
func TestRows_A7_EventsKeepTheirOrder(t *testing.T) {
	var events []Event
	for n := range 50 {
		e := orderEvent([]string{"OrderPlaced", "OrderCancelled"}[n%2])
		e.ID = uuid.Must(uuid.NewV7()).String()
		e.Sequence = fmt.Sprintf("3.%d", n+1)
		events = append(events, e)
	}
	w := Writer{Domain: writerDomain, Internal: "default", External: []Target{{Broker: "a"}, {Broker: "b"}}}
	rows, err := w.Rows(events, 64)
	require.NoError(t, err)
	require.Len(t, rows, 150)
	last := ""
	for i, r := range rows {
		require.Equal(t, events[i/3].ID, r.MessageID)
		require.Equal(t, []string{"default", "a", "b"}[i%3], r.TargetBroker)
		require.Contains(t, string(r.Payload), `"sequence_id":"`+events[i/3].Sequence+`"`)
		require.Greater(t, r.ID, last)
		last = r.ID
	}
}

func TestRows_EachDistinctEnvelopeIsBuiltOnce(t *testing.T) {
	w := Writer{Domain: writerDomain, Internal: "default", External: []Target{
		{Broker: "a", Extensions: []string{"zone", "region", "x-user"}},
		{Broker: "b", Extensions: []string{"region", "x-user", "zone", "unknown"}}, // what a gets, said in another way
		{Broker: "c"},
		{Broker: "d", Extensions: []string{"unknown"}},
	}}
	rows, err := w.Rows([]Event{orderEvent("OrderPlaced")}, 64)
	require.NoError(t, err)
	require.Len(t, rows, 5)
	at := func(i int) *byte { return unsafe.SliceData(rows[i].Payload) }
	require.Same(t, at(1), at(2))
	require.Same(t, at(3), at(4))
	require.NotSame(t, at(0), at(1))
	require.NotSame(t, at(1), at(3))
}

// S2-26: the error says what is too large, by how much, and what to do.
func TestRows_TooLarge(t *testing.T) {
	e := orderEvent("OrderPlaced")
	internal, external := len(internalBody(e)), len(externalBody(e, Target{}))
	require.Greater(t, internal, external)
	w := Writer{Domain: writerDomain, Internal: "default", External: []Target{{Broker: "partner"}}, MaxMessageBytes: internal}
	rows, err := w.Rows([]Event{e}, 64)
	require.NoError(t, err)
	require.Len(t, rows, 2)

	w.MaxMessageBytes = internal - 1
	rows, err = w.Rows([]Event{e}, 64)
	require.Equal(t, &TooLargeError{Type: e.Type, AggregateID: "o1", Target: "default", Size: internal, Limit: internal - 1}, err)
	require.Empty(t, rows)
	for _, part := range []string{e.Type, "o1", "default", fmt.Sprint(internal), fmt.Sprint(internal - 1), "max_message_bytes"} {
		require.ErrorContains(t, err, part)
	}

	w.MaxMessageBytes = 0
	_, err = w.Rows([]Event{e}, 64)
	require.NoError(t, err, "0 is no limit")
}

func TestRows_Refuses(t *testing.T) {
	w := Writer{Domain: writerDomain, Internal: "default"}
	_, err := w.Rows([]Event{orderEvent("OrderPlaced")}, 0)
	require.ErrorContains(t, err, "0 partitions")

	e := orderEvent("OrderShipped")
	_, err = w.Rows([]Event{e}, 1)
	require.ErrorContains(t, err, "Ordering.OrderShipped.v1")

	e = orderEvent("OrderPlaced")
	e.Data = nil
	_, err = w.Rows([]Event{e}, 1)
	require.ErrorContains(t, err, "has no data")

	// The tenant would otherwise leave as a user's extension.
	e = orderEvent("OrderPlaced")
	e.Extensions = map[string]string{"tenant_id": "x"}
	_, err = w.Rows([]Event{e}, 1)
	require.ErrorContains(t, err, "domain.Origin.TenantID")
}

func BenchmarkRows(b *testing.B) {
	w := Writer{Domain: writerDomain, Internal: "default", External: []Target{{Broker: "partner"}}, MaxMessageBytes: 1 << 20}
	events := []Event{orderEvent("OrderPlaced")}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := w.Rows(events, 64); err != nil {
			b.Fatal(err)
		}
	}
}
