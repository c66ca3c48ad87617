package whole

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/simulation/simtest"
)

// withoutVar names the rule that is left out.
const withoutVar = "WAYBILL_WITHOUT"

// A rule that is left out is found: from the kept seed on, or in a long run from the first
// one on, within a minute.
func TestSwitches_OfUnitsAndConsumersAreFoundWithinAMinute(t *testing.T) {
	if rule := os.Getenv(withoutVar); rule != "" {
		found(t, rule)
		return
	}
	from := simtest.Seeds(t, "seeds.md")
	require.ElementsMatch(t, slices.Collect(maps.Keys(rules)), slices.Collect(maps.Keys(from)), "rules, and rows of seeds.md")
	built := program(t)
	for _, rule := range slices.Sorted(maps.Keys(rules)) {
		t.Run(rule, func(t *testing.T) {
			first := from[rule]
			if long() {
				first = 0
			}
			out := run(t, built, "TestSwitches_OfUnitsAndConsumersAreFoundWithinAMinute", withoutVar+"="+rule, fmt.Sprintf("WAYBILL_FIRST=%d", first))
			at := regexp.MustCompile(`: seed (\d+) in [^\n]*`).FindStringSubmatch(out)
			require.NotNil(t, at, out)
			t.Log(rule + at[0])
			seed, err := strconv.ParseUint(at[1], 10, 64)
			require.NoError(t, err)
			run(t, built, "TestWhole_Schedules", fmt.Sprintf("WAYBILL_FIRST=%d", seed), "WAYBILL_SCHEDULES=1")
		})
	}
}

// found looks for a seed that fails without a rule.
func found(t *testing.T, rule string) {
	t.Helper()
	file, begin := template(t), simtest.Processor(t)
	for seed := simtest.Number(t, "WAYBILL_FIRST", 0); simtest.Processor(t)-begin < time.Minute; seed++ {
		o := simulate(t, file, planOf(seed), nil, false)
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
		return
	}
	t.Fatalf("no seed finds that %s is left out", rule)
}
