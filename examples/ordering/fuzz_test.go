package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each line of a file is an order, or is reported.
func FuzzOrderFile(f *testing.F) {
	f.Add("00001,1997-01-01,2,2933\r\n\n\"Smith, J.\",1998-06-30,1,0")
	f.Add("c,1997-02-30,0,-1\n\"\n\xff,,,\n")
	f.Add("a,1997-01-01,9223372036854775807,9223372036854775807\r")
	f.Fuzz(func(t *testing.T, lines string) {
		var stderr bytes.Buffer
		file, err := newOrderFile(strings.NewReader(header+"\n"+lines), "orders.csv", &stderr)
		require.NoError(t, err)
		lined := 0
		for line := range strings.SplitSeq(lines, "\n") {
			if strings.TrimRight(line, "\r") != "" {
				lined++
			}
		}
		jobs := 0
		for j := range file.orders(1, 1) {
			jobs++
			o, err := j.order()
			require.NoError(t, err)
			require.NoError(t, o.Validate())
			require.Equal(t, j.customer, o.CustomerID)
		}
		require.Equal(t, lined, jobs+file.bad)
		require.Equal(t, file.bad > 0, file.err() != nil)
	})
}
