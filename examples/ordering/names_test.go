package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/examples/ordering/billing"
	"github.com/waybill-go/waybill/examples/ordering/ordering"
	"github.com/waybill-go/waybill/examples/ordering/shipping"
)

// domains are the three contexts.
var domains = []*domain.Domain{ordering.Selling(time.Hour), shipping.Domain, billing.Domain}

// Names on the wire and in tables are for ever: whoever changes one of these
// breaks consumers and stored messages. domain.Named and domain.Alias help.
func TestNames_DoNotChange(t *testing.T) {
	var got strings.Builder
	for _, d := range domains {
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
		for _, c := range d.Commands() {
			fmt.Fprintf(&got, "%s command %s", d.Name(), c.WireName())
			if c.Foreign {
				got.WriteString(" foreign")
			}
			got.WriteString("\n")
		}
		for _, p := range d.Processes() {
			fmt.Fprintf(&got, "%s process %s\n", d.Name(), p.Name)
		}
	}
	want, err := os.ReadFile("testdata/names.txt")
	require.NoError(t, err)
	require.Equal(t, string(want), got.String())
}

// What a context listens to, or sends, exists under that name.
func TestNames_ForeignOnesAreOthersOwn(t *testing.T) {
	own := map[string]bool{}
	for _, d := range domains {
		for _, e := range d.Events() {
			own[e.WireName()] = own[e.WireName()] || !e.Foreign
		}
		for _, c := range d.Commands() {
			own[c.WireName()] = own[c.WireName()] || !c.Foreign
		}
	}
	for name, ok := range own {
		require.True(t, ok, name)
	}
}

// Every message of ordering has its handler in shipping, so shipping's inbox can be
// counted against them.
func TestNames_ShippingHearsAllThatOrderingTells(t *testing.T) {
	var tells, hears []string
	for _, e := range ordering.Domain.Events() {
		tells = append(tells, e.WireName())
	}
	for _, e := range shipping.Domain.Events() {
		if e.Foreign {
			hears = append(hears, e.WireName())
		}
	}
	require.ElementsMatch(t, tells, hears)
}
