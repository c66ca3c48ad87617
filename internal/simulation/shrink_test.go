package simulation

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill/internal/simulation/simtest"
)

const shrinking = 20 * time.Second

// shrink makes a schedule smaller, as long as it violates the same, see [simtest.Shrink].
func shrink(t *testing.T, seed uint64, bad outcome, off []string) (acts []act, last outcome) {
	t.Helper()
	want := kind(bad.report.Violations[0])
	acts = simtest.Shrink(bad.acts, shrinking, func(acts []act) ([]act, bool) {
		o := simulate(t, planOf(seed), off, acts, false)
		fails := slices.ContainsFunc(o.report.Violations, func(v string) bool { return strings.HasPrefix(v, want) })
		if fails {
			last = o
		}
		return o.acts, fails
	})
	return acts, last
}
