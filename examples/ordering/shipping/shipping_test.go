package shipping_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain/domaintest"
	"github.com/waybill-go/waybill/examples/ordering/shipping"
)

func TestPrepare_ShipsUnderTheOrdersNumber(t *testing.T) {
	domaintest.New(t, shipping.Domain, func() (*shipping.Shipment, error) { return shipping.Prepare("o-1"), nil }).
		Then(shipping.ShipmentPrepared{ShipmentID: "o-1"})
}

func TestCancel(t *testing.T) {
	domaintest.Given(t, shipping.Domain, shipping.Prepare("o-1")).
		When((*shipping.Shipment).Cancel).
		Then(shipping.ShipmentCancelled{ShipmentID: "o-1"}).
		When((*shipping.Shipment).Cancel).
		ThenError(shipping.ErrCancelled)
}

func TestDispatch_OrCancelNeverBoth(t *testing.T) {
	domaintest.Given(t, shipping.Domain, shipping.Prepare("o-1")).
		When((*shipping.Shipment).Dispatch).
		Then(shipping.ShipmentDispatched{ShipmentID: "o-1"}).
		When((*shipping.Shipment).Cancel).
		ThenError(shipping.ErrDispatched).
		When((*shipping.Shipment).Dispatch).
		ThenError(shipping.ErrDispatched)
	domaintest.Given(t, shipping.Domain, shipping.Prepare("o-1")).
		When((*shipping.Shipment).Cancel).
		Then(shipping.ShipmentCancelled{ShipmentID: "o-1"}).
		When((*shipping.Shipment).Dispatch).
		ThenError(shipping.ErrCancelled)
}

func TestAddLabel(t *testing.T) {
	label := func(s *shipping.Shipment) error { return s.AddLabel("a gift") }
	domaintest.Given(t, shipping.Domain, shipping.Prepare("o-1")).
		When(label).
		Then(shipping.ShipmentLabelled{ShipmentID: "o-1", Text: "a gift"}).
		When((*shipping.Shipment).Cancel).
		Then(shipping.ShipmentCancelled{ShipmentID: "o-1"}).
		When(label).
		ThenError(shipping.ErrCancelled)
}

// What another context says is read by its name on the wire, with what shipping
// doesn't care for left out.
func TestForeignEvents_AreReadInShippingsOwnWords(t *testing.T) {
	for name, want := range map[string]any{
		"Ordering.OrderPlaced.v1":    shipping.OrderPlaced{OrderID: "o-1"},
		"Ordering.OrderReleased.v1":  shipping.OrderReleased{OrderID: "o-1"},
		"Ordering.OrderCancelled.v2": shipping.OrderCancelled{OrderID: "o-1"},
		"Ordering.NoteAdded.v1":      shipping.NoteAdded{OrderID: "o-1", Note: "a gift"},
	} {
		e, err := shipping.Domain.Decode(name, []byte(`{"order_id": "o-1", "customer_id": "c-1", "total": 901, "note": "a gift"}`))
		require.NoError(t, err)
		require.Equal(t, want, e)
	}
}

func TestShipping_ImportsNothingOfOrdering(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "waybill/examples/ordering/shipping")
	for dep := range strings.Lines(string(out)) {
		require.NotContains(t, dep, "waybill/examples/ordering/ordering")
	}
}
