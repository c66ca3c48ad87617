package faults

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// F-40: while the database is away, for longer than leases last, the lane, the
// subscription and whoever listens have one line of it each in the log, and one
// when it is back, however often it is tried.
// Conformance: U-22.
func TestDatabase_F_40_TwoLinesPerOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 30)
	w.createEffects()
	x := newProxy(t, &w.dsn)
	e := w.engine(lease(4*time.Second), func(c *nodeConfig) { c.Consume = true })
	w.drain()
	lines := func(with string) int { return strings.Count(e.logged(), with) }
	begins := []string{"the database does not answer as it should", "the database fails; messages wait", "commits of other processes are found by polling"}
	ends := []string{`the database answers again","lane"`, `the database answers again","subscription"`, "commits of other processes are heard of again"}
	for range 2 {
		w.move(30, 20)
		// A busy machine may have had outages of its own.
		before := make([]int, len(begins))
		eventually(t, func() bool {
			for i := range begins {
				before[i] = lines(begins[i])
				if lines(ends[i]) != before[i] {
					return false
				}
			}
			return true
		}, "nothing is away")
		x.cut()
		w.tell() // for the subscription to need the database
		eventually(t, func() bool { return w.lapsed(2 * time.Second) }, "the leases have run out long ago")
		for i := range begins {
			eventually(t, func() bool { return lines(begins[i]) > before[i] }, "it says %q", begins[i])
		}
		for i := range begins {
			require.Equal(t, before[i]+1, lines(begins[i]), "%s\n%s", begins[i], e.logged())
			require.Equal(t, before[i], lines(ends[i]), "%s\n%s", ends[i], e.logged())
		}
		x.mend()
		w.drain()
		for i := range ends {
			eventually(t, func() bool { return lines(ends[i]) > before[i] }, "it says %q", ends[i])
		}
	}
	w.check()
}
