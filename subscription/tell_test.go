package subscription_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/subscription"
)

const letGo = "are let go"

// A name that is misspelled, or was changed, looks like messages that concern nobody: the log
// names each such type once, of a stream of others as long as nothing was handled.
func TestLog_NamesTypesThatNobodyDeclares(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		r, stop := w.start(w.stream(), w.broker)
		w.publish(message("1", "Ordering.OrderPlacd.v1", "o-1", `{}`), message("2", "Ordering.OrderPlacd.v1", "o-1", `{}`))
		w.until(func() bool { return r.Status().Ignored == 2 }, "ignored")
		require.Len(t, w.logs.lines(letGo), 1)
		require.Contains(t, w.logs.lines(letGo)[0], "level=INFO")
		require.Contains(t, w.logs.lines(letGo)[0], "correct the name in domain.PartnerEvent or domain.Foreign\" subscription=shipping type=Ordering.OrderPlacd.v1")

		w.publish(placed("o-1", ""))
		w.until(func() bool { return r.Status().Handled == 1 }, "handled")
		w.publish(message("3", "Ordering.OrderNoted.v1", "o-1", `{}`))
		w.until(func() bool { return r.Status().Ignored == 3 }, "ignored")
		require.Len(t, w.logs.lines(letGo), 1, "what others send is no concern of a subscription that gets what it handles")
		stop()

		own := w.streamOf(subscription.On(func(context.Context, ShipmentPrepared) error { return nil }))
		own.Name, own.Category = "own", "shipping::shipment"
		r, _ = w.start(own, w.broker)
		publish := func(id, typ string) {
			m := message(id, typ, "s-1", `{"shipment_id":"s-1"}`)
			m.Topic = "shipping.shipment"
			w.publish(m)
		}
		publish("4", "Shipping.ShipmentPrepared.v1")
		w.until(func() bool { return r.Status().Handled == 1 }, "handled")
		publish("5", "Shipping.ShipmentMade.v1")
		w.until(func() bool { return r.Status().Ignored == 1 }, "ignored")
		require.Len(t, w.logs.lines(letGo), 2)
		require.Contains(t, w.logs.lines(letGo)[1], "level=WARN")
		require.Contains(t, w.logs.lines(letGo)[1], "give it a domain.Alias of its former name")
		require.Contains(t, w.logs.lines(letGo)[1], "subscription=own type=Shipping.ShipmentMade.v1")

		for i := range 30 { // Anybody may make up names.
			publish(fmt.Sprint("made-up-", i), fmt.Sprintf("Shipping.MadeUp%d.v1", i))
		}
		w.until(func() bool { return r.Status().Ignored == 31 }, "ignored")
		require.Len(t, w.logs.lines("subscription=own type="), 20)
	})
}

// Who forgets the form of a partner's messages is told which one they have.
func TestInbound_NamesTheFormThatIsMissing(t *testing.T) {
	for name, c := range map[string]struct {
		m    broker.Message
		want string
	}{
		"binary":     {broker.Message{Headers: header("ce_"), Body: []byte(`{}`)}, "it is a CloudEvent, so set Stream.Inbound.Format to subscription.CloudEvents()"},
		"structured": {broker.Message{Headers: map[string]string{"Content-Type": "application/cloudevents+json"}, Body: []byte(`{"id":"1"}`)}, "it is a CloudEvent, so"},
		"another":    {broker.Message{Body: []byte("captured;1;o-1;12")}, "it isn't in Waybill's envelope: if its sender doesn't use Waybill, set Stream.Inbound.Format to what it sends"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := subscription.Waybill()(c.m)
			require.ErrorContains(t, err, c.want)
		})
	}
	_, err := subscription.Waybill()(broker.Message{Headers: map[string]string{"type": placedV1}, Body: []byte(`{}`)})
	require.NotContains(t, err.Error(), "Format", "a Waybill has sent it")
}
