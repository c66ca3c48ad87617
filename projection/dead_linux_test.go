package projection_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/liveness/livenesstest"
)

// Who was killed on this host leaves its lease to the next process here at once. A process that
// lives keeps it, and so does one that nothing is known of, as it may be on another host.
// Conformance: N1.
func TestRunner_N1_TakesTheLeaseOfADeadProcessAtOnce(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		p := w.ran(t)
		other := counted(func(string) error { return nil })
		// More than a test takes, and no more than any lease may have.
		has := func(owner string) {
			_, err := w.p.DB().ExecContext(t.Context(), "UPDATE projection_positions SET owner = ?, locked_until = "+dbtime.In(w.p.DB().Dialect(), 58*time.Second)+" WHERE projection = ?", owner, p.Name)
			require.NoError(t, err)
		}
		for i, owner := range []string{livenesstest.Alive(), "elsewhere-4711-00c0ffee"} {
			has(owner)
			r, stop := w.run(t, p, other) // It looks at them in this order.
			w.place(t, fmt.Sprint("l", i+2))
			w.wait(t, other.Name)
			require.NotContains(t, fmt.Sprint(r.Feeding()), "current", "%s has it", owner)
			stop()
		}

		has(livenesstest.Dead(t))
		begin := time.Now()
		r, _ := w.run(t, p, other)
		w.wait(t, p.Name)
		require.Less(t, time.Since(begin), 30*time.Second, "it has not waited for the lease")
		require.Contains(t, fmt.Sprint(r.Feeding()), "current")
		require.Len(t, w.view(t, "SELECT loan_id FROM current_loans"), 3)
	})
}
