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
func TestDatabase_F_40_TwoLinesPerOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 30)
	w.createEffects()
	x := newProxy(t, &w.dsn)
	e := w.engine(lease(2*time.Second), func(c *nodeConfig) { c.Outbox.Workers, c.Consume = 4, true })
	w.drain()
	lines := func(with string) int { return strings.Count(e.logged(), with) }
	all := func(n int, what ...string) {
		for _, line := range what {
			require.Equal(t, n, lines(line), "%s\n%s", line, e.logged())
		}
	}
	begins := []string{"the database does not answer as it should", "the database fails; messages wait", "commits of other processes are found by polling"}
	ends := []string{`the database answers again","lane"`, `the database answers again","subscription"`, "commits of other processes are heard of again"}
	for outage := 1; outage <= 2; outage++ {
		w.move(30, 20) // for the subscription to be busy
		x.cut()
		eventually(t, func() bool {
			return w.count("outbox_partitions WHERE locked_until > clock_timestamp() - interval '2 seconds'") == 0
		}, "the leases have run out long ago")
		eventually(t, func() bool { return lines(begins[1]) == outage }, "the subscription needs the database")
		all(outage, begins...)
		all(outage-1, ends...)
		x.mend()
		w.drain()
		for _, line := range ends {
			eventually(t, func() bool { return lines(line) == outage }, "it says %q", line)
		}
	}
	all(2, begins...)
	w.check()
}
