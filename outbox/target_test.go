package outbox

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTargetCheck_Accepts(t *testing.T) {
	for _, target := range []Target{
		{Broker: "partner"},
		{Broker: "partner", Extensions: []string{}},
		{
			Broker:     "partner",
			Events:     []string{"OrderPlaced", "InvoiceSent"},
			Extensions: []string{"tenant_id", "x-user", "a.b"},
			Topics:     map[string]string{"ordering::order": "orders", "ordering::invoice": "invoices"},
		},
	} {
		require.NoError(t, target.Check(writerDomain))
	}
}

func TestTargetCheck_ReportsAllMistakesWithTheirRemedies(t *testing.T) {
	err := Target{
		Broker:     "partner",
		Events:     []string{"OrderShipped", "NoteAdded", "", "StockReserved", "Ordering.OrderPlaced"},
		Extensions: []string{"user id", "", "größe", "fine"},
		Topics:     map[string]string{"ordering.order": "orders", "shipping::shipment": "", "ordering::order": " "},
	}.Check(writerDomain)
	require.Error(t, err)
	mistakes := strings.Split(err.Error(), "\n")
	for i, want := range []string{
		`context ordering declares no event "OrderShipped": name one of its published events ["InvoiceSent" "OrderCancelled" "OrderPlaced"]`,
		`event "NoteAdded" is not published: declare it with domain.Published(), or take it out of events`,
		`events has an empty name: take it out`,
		`declares no event "StockReserved"`,
		`declares no event "Ordering.OrderPlaced"`,
		`extension "user id" can't be the name of a header`,
		`extension "" can't be the name of a header`,
		`extension "größe" can't be the name of a header`,
		`the stream category "ordering.order", which context ordering doesn't have: use one of ["ordering::invoice" "ordering::order"]`,
		`no topic for "ordering::order"`,
		`the stream category "shipping::shipment", which`,
		`no topic for "shipping::shipment"`,
	} {
		require.Less(t, i, len(mistakes))
		require.Contains(t, mistakes[i], want)
		require.True(t, strings.HasPrefix(mistakes[i], `external broker "partner": `), mistakes[i])
	}
	require.Len(t, mistakes, 12)
}

func TestTargetCheck_NoNameAndNoEvents(t *testing.T) {
	err := Target{Events: []string{}}.Check(writerDomain)
	require.ErrorContains(t, err, "set Broker to the name")
	require.ErrorContains(t, err, "events is empty")
}

func TestDefaultTopic(t *testing.T) {
	require.Equal(t, "ordering.order", DefaultTopic("ordering::order"))
	require.Equal(t, "a_b.c-d", DefaultTopic("a_b::c-d"))
}
