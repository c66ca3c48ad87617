package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/examples/ordering/ordering"
	"github.com/waybill-go/waybill/examples/ordering/shipping"
)

// Names on the wire and in tables are for ever: whoever changes one of these
// breaks consumers and stored messages. domain.Named and domain.Alias help.
func TestNames_DoNotChange(t *testing.T) {
	var got strings.Builder
	for _, d := range []*domain.Domain{ordering.Domain, shipping.Domain} {
		for _, a := range d.Aggregates() {
			fmt.Fprintf(&got, "%s aggregate %s %s\n", d.Name(), a.Name, a.Category)
		}
		for _, e := range d.Events() {
			fmt.Fprintf(&got, "%s event %s", d.Name(), e.WireName())
			if e.Published {
				got.WriteString(" published")
			}
			if e.Foreign {
				got.WriteString(" foreign")
			}
			got.WriteString("\n")
		}
	}
	want, err := os.ReadFile("testdata/names.txt")
	require.NoError(t, err)
	require.Equal(t, string(want), got.String())
}

// What shipping listens to exists under that name.
func TestNames_ForeignEventsAreWhatOrderingTells(t *testing.T) {
	tells := map[string]bool{}
	for _, e := range ordering.Domain.Events() {
		tells[e.WireName()] = true
	}
	for _, e := range shipping.Domain.Events() {
		if e.Foreign {
			require.True(t, tells[e.WireName()], e.WireName())
			delete(tells, e.WireName())
		}
	}
	require.Empty(t, tells, "every message of ordering has its handler, so the inbox can be counted against them")
}
