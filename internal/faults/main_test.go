// Package faults kills, stops and cuts off real processes on real servers, and
// lets a checker of its own decide whether anything was lost, invented or put
// out of order.
//
// With WAYBILL_LONG set the tests do more of it, for minutes. WAYBILL_SEED makes
// the chaos of an earlier run again, WAYBILL_STORM says how long a storm lasts, such
// as 10m.
package faults

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// scratch is a directory for all tests of this run.
var scratch string

func TestMain(m *testing.M) {
	if text := os.Getenv(nodeVar); text != "" {
		if err := runNode(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// These tests wait more than they work, so more of them than there are
	// processors run side by side; but of many, Kafka answers none in time.
	flag.Parse()
	if err := flag.Set("test.parallel", "3"); err != nil {
		panic(err)
	}
	dir, err := os.MkdirTemp("", "faults")
	if err != nil {
		panic(err)
	}
	scratch = dir
	goleak.VerifyTestMain(m,
		goleak.Cleanup(func(code int) {
			ownKafka.end()
			_ = os.RemoveAll(scratch)
			os.Exit(code)
		}))
}

func long() bool { return os.Getenv("WAYBILL_LONG") != "" }

func stormLasts(t *testing.T) time.Duration {
	t.Helper()
	if text := os.Getenv("WAYBILL_STORM"); text != "" {
		d, err := time.ParseDuration(text)
		require.NoError(t, err)
		return d
	}
	if long() {
		return 5 * time.Minute
	}
	return 20 * time.Second
}
