package subscription_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// Order is ordering's aggregate: another context, with types of its own.
type Order struct {
	domain.Root
	Note string
}

type orderPlaced struct {
	OrderID string `json:"order_id"`
	Note    string `json:"note"`
}

var ordering = domain.MustNew("ordering",
	domain.Aggregate[*Order]("order", domain.Event[orderPlaced](domain.Named("OrderPlaced"), domain.Published())),
)

func place(id, note string) *Order {
	o := &Order{Root: domain.RootWithID(id), Note: note}
	o.Raise(orderPlaced{OrderID: id, Note: note})
	return o
}

// outboxRow is what a context has to publish.
type outboxRow struct {
	MessageID     string
	CorrelationID string
	CausationID   string
	TenantID      string
	Traceparent   string
	Priority      int
	Payload       []byte
}

func (w *world) outboxOf(category string) []outboxRow {
	w.t.Helper()
	var rows []outboxRow
	err := w.provider.Reader().NewRaw("SELECT message_id, correlation_id, causation_id, tenant_id, traceparent, priority, payload FROM outbox WHERE stream_category = ? ORDER BY seq", category).
		Scan(context.Background(), &rows)
	require.NoError(w.t, err)
	return rows
}

// process publishes what is in the outbox until the test ends.
func (w *world) process() {
	w.t.Helper()
	p, err := relay.New(relay.Config{
		Provider: w.provider.Name(),
		Store:    outboxdb.New(w.provider.DB(), w.provider.Reader()),
		Lanes:    []relay.Lane{{Target: "default", Broker: w.broker}},
		Outbox:   outbox.Config{PollInterval: 10 * time.Millisecond},
	})
	require.NoError(w.t, err)
	require.NoError(w.t, p.Start(w.t.Context()))
	w.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(w.t, p.Stop(ctx))
	})
}

// S4-19, S4-20, A65, A66, D10, F-77, C-79, U-25: from the request to what a handler's own events carry.
func TestOriginFlowsThroughAHandler(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		ordersUnits, err := uow.New(uow.Config{Domain: ordering, Providers: []uow.Provider{w.provider}})
		require.NoError(t, err)
		placedOrders := repository.New[*Order](ordersUnits)
		shipments := repository.New[*Shipment](w.units)

		const n = 12
		var mu sync.Mutex
		got := map[string]domain.Metadata{}
		s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
			m, _ := domain.MetadataFrom(ctx)
			mu.Lock()
			got[e.OrderID] = m
			mu.Unlock()
			shipment := &Shipment{Root: domain.RootWithID(e.OrderID), Note: domain.OriginFrom(ctx).TenantID}
			shipment.Raise(ShipmentPrepared{ShipmentID: e.OrderID})
			return shipments.Save(ctx, shipment)
		}))
		w.process()
		_, stop := w.start(s, w.broker)
		for i := range n {
			ctx := domain.WithPriority(domain.WithOrigin(t.Context(), domain.Origin{
				CorrelationID: fmt.Sprintf("request-%d", i),
				TenantID:      fmt.Sprintf("tenant-%d", i),
				Traceparent:   fmt.Sprintf("00-0af7651916cd43dd8448eb211c8031%02d-b7ad6b7169203331-01", i),
				Extensions:    map[string]string{"channel": fmt.Sprintf("web-%d", i)},
			}), i)
			require.NoError(t, placedOrders.Save(ctx, place(fmt.Sprintf("o-%d", i), "")))
		}
		w.until(func() bool { return len(w.outboxOf("shipping::shipment")) == n }, "all shipments are prepared")
		stop()

		sent := map[string]outboxRow{}
		for _, r := range w.outboxOf("ordering::order") {
			sent[r.CorrelationID] = r
		}
		for _, r := range w.outboxOf("shipping::shipment") {
			caused, _, err := outbox.ParseEnvelope(r.Payload)
			require.NoError(t, err)
			i := 0
			_, err = fmt.Sscanf(caused.AggregateID, "o-%d", &i)
			require.NoError(t, err)
			cause := sent[fmt.Sprintf("request-%d", i)]
			require.Equal(t, domain.Origin{
				CorrelationID: fmt.Sprintf("request-%d", i),
				CausationID:   cause.MessageID,
				TenantID:      fmt.Sprintf("tenant-%d", i),
				Traceparent:   fmt.Sprintf("00-0af7651916cd43dd8448eb211c8031%02d-b7ad6b7169203331-01", i),
				Extensions:    map[string]string{"channel": fmt.Sprintf("web-%d", i)},
			}, caused.Origin)
			require.Equal(t, i, caused.Priority)
			require.Equal(t, cause.MessageID, r.CausationID, "the row has it too")
			require.Equal(t, caused.TenantID, r.TenantID)

			m := got[caused.AggregateID]
			require.Equal(t, cause.MessageID, m.ID)
			require.Equal(t, placedV1, m.Type)
			require.Equal(t, fmt.Sprintf("tenant-%d", i), m.TenantID)
			require.Equal(t, "ordering::order-"+caused.AggregateID, m.Stream)
			require.EqualValues(t, 1, m.Version)
			require.Equal(t, "1.1", m.Sequence)
		}
	})
}

// S3-06: a consumer can't tell what came through an outbox from what somebody
// published directly in the documented form.
func TestOutboxOrDirectIsTheSameToAConsumer(t *testing.T) {
	w := newWorld(t, openPostgres(t))
	units, err := uow.New(uow.Config{Domain: ordering, Providers: []uow.Provider{w.provider}})
	require.NoError(t, err)
	w.process()
	ctx := domain.WithOrigin(t.Context(), domain.Origin{
		CorrelationID: "c", CausationID: "p", TenantID: "acme", Extensions: map[string]string{"channel": "web"},
		Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	})
	require.NoError(t, repository.New[*Order](units).Save(ctx, place("o", "by the outbox")))
	w.until(func() bool { return len(w.broker.Messages(topic)) == 1 }, "it is published")
	published := w.broker.Messages(topic)[0]

	// By hand, from the contract alone.
	var body struct {
		Data     json.RawMessage `json:"data"`
		Metadata struct {
			Headers  struct{ ID, Type, Time, Stream, Traceparent string }
			Envelope struct{ Checksum string }
		} `json:"metadata"`
	}
	require.NoError(t, json.Unmarshal(published.Body, &body))
	direct := broker.Message{
		ID: body.Metadata.Headers.ID, Topic: "ordering.order", Key: "o",
		Headers: map[string]string{
			"id": body.Metadata.Headers.ID, "type": "Ordering.OrderPlaced.v1", "time": body.Metadata.Headers.Time,
			"content-type": "application/json", "correlation-id": "c", "tenant-id": "acme",
			"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		},
		Body: []byte(fmt.Sprintf(`{"data":{"order_id":"o","note":"by the outbox"},"metadata":{`+
			`"headers":{"id":%q,"type":"Ordering.OrderPlaced.v1","time":%q,"stream":"ordering::order-o","traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},`+
			`"envelope":{"specversion":"1.0","checksum":%q},`+
			`"domain":{"context":"ordering","kind":"EVENT","aggregate":"order","aggregate_id":"o","stream_category":"ordering::order","version":1,"sequence_id":"1.1","correlation_id":"c","causation_id":"p","expected_version":0,"asynchronous":true,"priority":0},`+
			`"event_store":{"position":1,"global_position":null},"extensions":{"channel":"web","tenant_id":"acme"}}}`,
			body.Metadata.Headers.ID, body.Metadata.Headers.Time, body.Metadata.Envelope.Checksum)),
	}
	require.Equal(t, string(direct.Body), string(published.Body))
	maps.DeleteFunc(published.Headers, func(name, _ string) bool { return strings.HasPrefix(name, "waybill-") }) // for the inbox only
	require.Equal(t, direct, published)

	type seen struct {
		event OrderPlaced
		m     domain.Metadata
	}
	consume := func(name string, m broker.Message) seen {
		b := memory.New(memory.Config{})
		require.NoError(t, b.Publish(t.Context(), []broker.Message{m}))
		got := make(chan seen, 1)
		s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
			m, _ := domain.MetadataFrom(ctx)
			got <- seen{e, m}
			return nil
		}))
		s.Name = name
		_, stop := w.start(s, b)
		defer stop()
		return <-got
	}
	require.Equal(t, consume("one", published), consume("two", direct))
}

// A message that another context stripped for its partners reads as well.
func TestPartnersEnvelope(t *testing.T) {
	w := newWorld(t, openSQLite(t))
	units, err := uow.New(uow.Config{Domain: ordering, Providers: []uow.Provider{w.provider}, External: []outbox.Target{{Broker: "partner"}}})
	require.NoError(t, err)
	require.NoError(t, repository.New[*Order](units).Save(t.Context(), place("o", "stripped")))
	var payload []byte
	require.NoError(t, w.provider.Reader().NewRaw("SELECT payload FROM outbox WHERE target_broker = 'partner'").Scan(t.Context(), &payload))
	w.publish(broker.Message{ID: uuid.NewString(), Topic: topic, Key: "o", Body: payload})
	_, stop := w.start(w.stream(), w.broker)
	w.until(w.acknowledged("shipping"), "it is acknowledged")
	stop()
	require.Equal(t, []string{"stripped"}, w.effects("o"))
}
