package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/contract/contracttest"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/examples/ordering/billing"
	"github.com/waybill-go/waybill/examples/ordering/ordering"
	"github.com/waybill-go/waybill/examples/ordering/shipping"
)

// domains are the three contexts.
var domains = []*domain.Domain{ordering.Selling(time.Hour), shipping.Domain, billing.Domain}

// What the contexts tell others, and what they have stored, can be read after every change:
// the files in testdata hold it. See contracttest for what to do when this fails.
func TestContracts(t *testing.T) {
	for _, d := range domains {
		contracttest.Check(t, d, "testdata/"+d.Name())
	}
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
