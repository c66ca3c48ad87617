package faults

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// D2, A30: a message that kills whoever publishes it ends after exactly five
// crashes, as abandoned, and takes none of the 499 others with it.
func TestCrash_D2_A30_APoisonRowEndsAfterFiveCrashes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 25)
	w.move(25, 19)
	poison := w.strings("SELECT message_id::text FROM outbox ORDER BY seq OFFSET 237 LIMIT 1")[0]
	start := func() *process {
		return w.node(func(c *nodeConfig) { c.Outbox.Lease, c.Trap.KillAt = 3*time.Second, poison })
	}
	crashes := 0
	p := start()
	eventually(t, func() bool {
		select {
		case <-p.Ended():
			w.died(p)
			crashes++
			require.LessOrEqual(t, crashes, 5)
			p = start() // as a supervisor does, at once
		default:
		}
		return w.waiting() == 0
	}, "all rows are finished")
	require.Equal(t, 5, crashes)
	r := w.check(poison)
	require.Equal(t, 1, r.Abandoned)
	require.Equal(t, []string{"crash"}, w.strings("SELECT failure_class FROM outbox WHERE message_id = $1", poison))
	require.Equal(t, 499, w.published())
}
