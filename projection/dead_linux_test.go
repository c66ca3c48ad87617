package projection_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/dbtime"
)

// another starts a process, and returns its name.
func another(t *testing.T) (name string, kill func()) {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0])
	cmd.Env = append(os.Environ(), nameVar+"=1")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	kill = func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
		_ = in.Close()
	}
	t.Cleanup(kill)
	_, err = fmt.Fscanln(out, &name)
	require.NoError(t, err)
	return name, kill
}

// Who was killed on this host leaves its lease to the next process here at once. A process that
// lives keeps it, and so does one that nothing is known of, as it may be on another host.
// Conformance: N1.
func TestRunner_N1_TakesTheLeaseOfADeadProcessAtOnce(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		p := w.ran(t)
		other := counted(func(string) error { return nil })
		name, kill := another(t)
		// More than a test takes, and no more than any lease may have.
		has := func(owner string) {
			_, err := w.p.DB().ExecContext(t.Context(), "UPDATE projection_positions SET owner = ?, locked_until = "+dbtime.In(w.p.DB().Dialect(), 58*time.Second)+" WHERE projection = ?", owner, p.Name)
			require.NoError(t, err)
		}
		for i, owner := range []string{name, "elsewhere-4711-00c0ffee"} {
			has(owner)
			r, stop := w.run(t, p, other) // It looks at them in this order.
			w.place(t, fmt.Sprint("l", i+2))
			w.wait(t, other.Name)
			require.NotContains(t, fmt.Sprint(r.Feeding()), "current", "%s has it", owner)
			stop()
		}

		has(name)
		r, _ := w.run(t, p, other)
		kill()
		begin := time.Now()
		w.wait(t, p.Name)
		require.Less(t, time.Since(begin), 30*time.Second, "it has not waited for the lease")
		require.Contains(t, fmt.Sprint(r.Feeding()), "current")
		require.Len(t, w.view(t, "SELECT loan_id FROM current_loans"), 3)
	})
}
