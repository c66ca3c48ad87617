package faults

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// F-40: while the database is away, for longer than leases last, the log of a
// lane has one line of it, and one when it is back, however often it is tried.
func TestDatabase_F_40_TwoLinesPerOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 30)
	x := newProxy(t, &w.dsn)
	e := w.engine(lease(2*time.Second), func(c *nodeConfig) { c.Outbox.Workers = 4 })
	w.drain()
	lines := func(with string) int { return strings.Count(e.logged(), with) }
	const begins, ends = "the database does not answer as it should", "the database answers again"
	for outage := 1; outage <= 2; outage++ {
		x.cut()
		w.move(30, 2)
		eventually(t, func() bool {
			return w.count("outbox_partitions WHERE locked_until > clock_timestamp() - interval '2 seconds'") == 0
		}, "the leases have run out long ago")
		require.Equal(t, outage, lines(begins), e.logged())
		require.Equal(t, outage-1, lines(ends), e.logged())
		x.mend()
		w.drain()
		eventually(t, func() bool { return lines(ends) == outage }, "the end is said")
	}
	require.Equal(t, 2, lines(begins))
	w.check()
}
