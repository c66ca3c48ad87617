package simulation

import (
	"slices"
	"strings"
	"testing"
	"time"
)

const shrinking = 20 * time.Second

// shrink leaves acts out of a schedule, as long as it violates the same: halves first, then
// ever smaller parts, at last each alone (Zeller and Hildebrandt's ddmin, 2002). What it
// returns can't do without any of its acts, unless that takes longer than shrinking may.
func shrink(t *testing.T, seed uint64, bad outcome, off []string) ([]act, outcome) {
	t.Helper()
	want := kind(bad.report.Violations[0])
	try := func(acts []act) (outcome, bool) {
		o := simulate(t, planOf(seed), off, acts, false)
		return o, slices.ContainsFunc(o.report.Violations, func(v string) bool { return strings.HasPrefix(v, want) })
	}
	acts, last, begin := bad.acts, outcome{}, time.Now()
	for size := len(acts) / 2; size > 0 && time.Since(begin) < shrinking; {
		smaller := false
		for at := 0; at < len(acts) && time.Since(begin) < shrinking; {
			left := slices.Concat(acts[:at], acts[min(at+size, len(acts)):])
			if o, fails := try(left); fails {
				acts, last, smaller = o.acts, o, true
				continue
			}
			at += size
		}
		if !smaller || size > 1 {
			size /= 2
		}
	}
	return acts, last
}
