package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/examples/ordering/ordering"
)

func open(t *testing.T, content string) (*orderFile, *bytes.Buffer) {
	t.Helper()
	var stderr bytes.Buffer
	f, err := newOrderFile(strings.NewReader(content), "some/where/orders.csv", &stderr)
	require.NoError(t, err)
	return f, &stderr
}

func TestOrderFile_AnOrderPerLine(t *testing.T) {
	f, _ := open(t, header+"\r\n00001,1997-01-01,2,2933\r\n\n\"Smith, J.\",1998-06-30,1,0") // the last line has no end
	jobs := slices.Collect(f.orders(1, 1))
	require.NoError(t, f.err())
	require.Len(t, jobs, 2)

	o, err := jobs[0].order()
	require.NoError(t, err)
	require.Equal(t, "orders.csv-2", o.ID(), "the header is line 1")
	require.Equal(t, "00001", o.CustomerID)
	require.Equal(t, time.Date(1997, 1, 1, 0, 0, 0, 0, time.UTC), o.PlacedAt)
	require.Equal(t, []ordering.Line{{Article: "CD", Quantity: 2, Amount: 2933}}, o.Lines)
	require.EqualValues(t, 2933, o.Total(), "also where the quantity doesn't divide it")

	o, err = jobs[1].order()
	require.NoError(t, err)
	require.Equal(t, "orders.csv-4", o.ID(), "an empty line is a line")
	require.Equal(t, "Smith, J.", o.CustomerID)
	require.Zero(t, o.Total())
}

func TestOrderFile_ReportsLinesThatAreNoOrders(t *testing.T) {
	for line, want := range map[string]string{
		"c,1997-01-01,1":                     "3 fields instead of 4",
		"c,1997-01-01,1,2,3":                 "5 fields instead of 4",
		",1997-01-01,1,100":                  `customer is ""`,
		"\xff,1997-01-01,1,100":              `customer is "\xff"`,
		"c\x00,1997-01-01,1,100":             "customer is",
		"c,01/02/1997,1,100":                 `date is "01/02/1997"`,
		"c,1997-02-30,1,100":                 `date is "1997-02-30"`,
		"c,1997-01-01,zwei,100":              `quantity is "zwei"`,
		"c,1997-01-01,0,100":                 `quantity is "0"`,
		"c,1997-01-01,1,1.50":                `amount_cents is "1.50"`,
		"c,1997-01-01,1,-1":                  `amount_cents is "-1"`,
		"c,1997-01-01,1,9223372036854775808": "amount_cents is",
		`"c,1997-01-01,1,100`:                `"`,
		`c"d,1997-01-01,1,100`:               `"`,
	} {
		f, stderr := open(t, header+"\n"+line+"\nc,1997-01-01,1,100\n")
		require.Len(t, slices.Collect(f.orders(1, 1)), 1, "the next line goes on")
		require.ErrorContains(t, f.err(), "orders.csv: lines that are no orders: 1")
		require.Contains(t, stderr.String(), "orders.csv, line 2: ")
		require.Contains(t, stderr.String(), want)
	}
}

func TestOrderFile_PartsSplitByCustomer(t *testing.T) {
	var content strings.Builder
	content.WriteString(header + "\n")
	for i := range 300 {
		fmt.Fprintf(&content, "%05d,1997-01-01,1,%d\n", i%50, i)
	}
	owner := map[string]int{}
	orders := map[string]bool{}
	writers := map[int]bool{}
	for part := 1; part <= 3; part++ {
		f, _ := open(t, content.String())
		n := 0
		for j := range f.orders(part, 3) {
			n++
			before, seen := owner[j.customer]
			require.True(t, !seen || before == part, "a customer is in one part")
			owner[j.customer] = part
			o, err := j.order()
			require.NoError(t, err)
			require.False(t, orders[o.ID()], "an order is in one part")
			orders[o.ID()] = true
			if part == 1 {
				writers[writerOf(j.customer, 3)] = true
			}
		}
		require.NotZero(t, n)
	}
	require.Len(t, orders, 300)
	require.Len(t, writers, 3, "the customers of one part have different writers")
}

func TestCancelling_IsAPercentage(t *testing.T) {
	for _, percent := range []int{0, 1, 33, 50, 100} {
		n := 0
		for j := range cancelling(randomOrders(200, 5), percent) {
			if j.cancel {
				n++
			}
		}
		require.Equal(t, 2*percent, n)
	}
}

func TestParsePart(t *testing.T) {
	part, parts, err := parsePart("2/3")
	require.NoError(t, err)
	require.Equal(t, []int{2, 3}, []int{part, parts})
	part, parts, err = parsePart("")
	require.NoError(t, err)
	require.Equal(t, []int{1, 1}, []int{part, parts}, "all")
	for _, s := range []string{"0/2", "3/2", "1", "1/", "/2", "a/b", "1/2/3"} {
		_, _, err := parsePart(s)
		require.ErrorContains(t, err, "I/N", s)
	}
}
