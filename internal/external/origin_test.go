package external

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

type (
	shipment struct{ domain.Root }

	ShipmentPrepared struct {
		OrderID string `json:"order_id"`
	}
	placed struct { // OrderPlaced, in the words of shipping
		OrderID string `json:"order_id"`
		Note    string `json:"note"`
	}
)

var shipping = domain.MustNew("shipping",
	domain.Aggregate[*shipment]("shipment", domain.Event[ShipmentPrepared](domain.Published())),
	domain.Foreign[placed]("Ordering.OrderPlaced.v1"),
)

// S4-19, S4-20: correlation, tenant, trace and the user's extensions go from a
// request into its row, from there into the message, to the handler, and into the
// rows that this one causes, whose cause is the message.
// F-43: with one worker for orders of three kinds in turn, of which one has no
// origin at all, nothing is left of one message in the next, in headers, handlers
// or rows.
func TestOrigin_S4_19_S4_20_F_43(t *testing.T) {
	const orders = 60
	w := newWorld(t)
	m := w.units()
	shippingUnits, err := uow.New(uow.Config{Domain: shipping, Providers: []uow.Provider{w.db}, External: []outbox.Target{
		{Broker: "partner", Envelope: outbox.CloudEventsBinary, Extensions: []string{"tenant_id", "user"}},
	}})
	require.NoError(t, err)
	require.NoError(t, engine.Migrate(t.Context(), shippingUnits))
	shipments := repository.New[*shipment](shippingUnits)

	// An order's note says whose it is: a handler sees that, and its context.
	origin := func(i int) domain.Origin {
		if i%3 == 2 {
			return domain.Origin{}
		}
		return domain.Origin{
			CorrelationID: fmt.Sprint("correlation-", i), TenantID: fmt.Sprint("tenant-", i%3),
			Traceparent: fmt.Sprintf("00-%032x-00f067aa0ba902b7-01", i+1), Extensions: map[string]string{"user": fmt.Sprint("user-", i)},
		}
	}
	for i := range orders {
		w.place(domain.WithOrigin(t.Context(), origin(i)), m, fmt.Sprint("o-", i), fmt.Sprint(origin(i).TenantID))
	}
	wrong := make(chan string, orders)
	stream := subscription.Stream{Name: "shipping", Category: "ordering::order", Units: shippingUnits, Handlers: []subscription.Handler{
		subscription.On(func(ctx context.Context, e placed) error {
			if tenant := domain.OriginFrom(ctx).TenantID; tenant != e.Note {
				wrong <- fmt.Sprintf("%s: tenant %q sees an order of %q", e.OrderID, tenant, e.Note)
			}
			s := &shipment{Root: domain.RootWithID(e.OrderID)}
			s.Raise(ShipmentPrepared{OrderID: e.OrderID})
			return shipments.Save(ctx, s)
		}),
	}}
	e, err := engine.New(engine.Config{
		Units:         []*uow.Manager{m, shippingUnits},
		Brokers:       map[string]broker.Broker{"default": broker.Prefixed(w.nats, "own."), "partner": broker.Prefixed(w.nats, "partner.")},
		Subscriptions: []subscription.Stream{stream}, Logger: w.logger(),
		Outbox: outbox.Config{PollInterval: 50 * time.Millisecond, MaxPollInterval: 100 * time.Millisecond},
	})
	require.NoError(t, err)
	w.run(e)
	rows := w.settled(orders*4 + orders*2)
	require.Empty(t, wrong)

	cause := map[string]outbox.Entry{} // by order
	for _, r := range rows {
		if r.MessageType == "Ordering.OrderPlaced.v1" {
			cause[r.AggregateID] = r
		}
	}
	headers := map[string]map[string]string{} // by order
	for _, got := range w.allFromNATS("partner.shipping.shipment", orders) {
		headers[got.headers["key"]] = got.headers
	}
	for _, r := range rows {
		if r.MessageType != "Shipping.ShipmentPrepared.v1" {
			continue
		}
		var i int
		_, err := fmt.Sscanf(r.AggregateID, "o-%d", &i)
		require.NoError(t, err)
		want := origin(i)
		parent := cause[r.AggregateID]
		if want.CorrelationID == "" {
			want.CorrelationID = parent.CorrelationID // its own, made for its unit
		}
		require.Equal(t, want.CorrelationID, r.CorrelationID)
		require.Equal(t, want.TenantID, r.TenantID)
		require.Equal(t, want.Traceparent, r.Traceparent)
		require.Equal(t, parent.MessageID, r.CausationID)
		if r.TargetBroker != "partner" {
			continue
		}
		expected := map[string]string{
			"Nats-Msg-Id": "partner.shipping.shipment/" + r.MessageID, "key": r.AggregateID, "id": r.MessageID, "type": r.MessageType, "content-type": "application/json",
			"time": r.OccurredAt.UTC().Format("2006-01-02T15:04:05.000000Z"), "correlation-id": want.CorrelationID,
			"ce-specversion": "1.0", "ce-id": r.MessageID, "ce-source": "urn:waybill:shipping", "ce-type": r.MessageType,
			"ce-time": r.OccurredAt.UTC().Format("2006-01-02T15:04:05.000000Z"), "ce-subject": r.AggregateID, "ce-datacontenttype": "application/json",
			"ce-correlationid": want.CorrelationID, "ce-causationid": parent.MessageID, "ce-sequence": "0000000001.00001",
		}
		if i%3 < 2 {
			expected["tenant-id"], expected["ce-tenantid"] = want.TenantID, want.TenantID
			expected["traceparent"], expected["ce-traceparent"] = want.Traceparent, want.Traceparent
			expected["ce-user"] = want.Extensions["user"]
		}
		require.Equal(t, expected, headers[r.AggregateID], "%s: its own and no more", r.AggregateID)
	}
}
