package whole

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/simulation/simtest"
)

// withoutVar names the rule that is left out.
const withoutVar = "WAYBILL_WITHOUT"

// A rule that is left out is found: from the kept seed on, or in a long run from the first
// one on, within a minute. With all rules that seed passes.
func TestSwitches_OfUnitsAndConsumersAreFoundWithinAMinute(t *testing.T) {
	if os.Getenv(inside) == "" {
		t.Log(run(t, program(t), "TestSwitches_OfUnitsAndConsumersAreFoundWithinAMinute"))
		return
	}
	from, all := simtest.Seeds(t, "seeds.md"), slices.Sorted(maps.Keys(rules))
	require.ElementsMatch(t, all, slices.Collect(maps.Keys(from)), "rules, and rows of seeds.md")
	if rule := os.Getenv(withoutVar); rule != "" {
		all = strings.Split(rule, ",")
	}
	file := template(t)
	for _, rule := range all {
		first := from[rule]
		if long() {
			first = begin(from[rule])
		}
		t.Setenv(withoutVar, rule)
		seed := found(t, file, rule, simtest.Number(t, "WAYBILL_FIRST", first))
		t.Setenv(withoutVar, "")
		require.Empty(t, simulate(t, file, searched(seed), nil, false).wrongs, "seed %d, with all rules", seed)
	}
}

// begin is where a search for a rule begins: at the first seed of its kind.
func begin(kept uint64) uint64 {
	for _, first := range []uint64{travelled, timed} {
		if kept >= first {
			return first
		}
	}
	return 0
}

// searched is a seed's plan with less patience: what the kept seeds begin is over soon, and
// what never ends costs the more the longer it is watched.
func searched(seed uint64) plan {
	p := planOf(seed)
	if !long() {
		p.patience = 2 * time.Minute
	}
	return p
}

// found looks for a seed that fails without a rule.
func found(t *testing.T, file []byte, rule string, seed uint64) uint64 {
	t.Helper()
	for begin := simtest.Processor(t); simtest.Processor(t)-begin < time.Minute; seed++ {
		o := simulate(t, file, searched(seed), nil, false)
		if len(o.wrongs) == 0 {
			if seed%cleanUp == 0 {
				runtime.GC()
			}
			continue
		}
		fmt.Printf("%s: seed %d in %v: %s\n", rule, seed, (simtest.Processor(t) - begin).Round(time.Millisecond), o.wrongs[0])
		if long() {
			acts := smaller(t, file, seed, o)
			fmt.Printf("%d acts of %d are enough:\n%s", len(acts), len(o.acts), lines(acts))
		}
		return seed
	}
	t.Fatalf("no seed finds that %s is left out", rule)
	return 0
}
