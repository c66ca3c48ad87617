package simulation

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/simulation/simtest"
)

const (
	ordinary = 6_000
	most     = 1_000_000 // in a long run
	// watched is how many schedules run under the race detector, where every step takes
	// ten times as long and the order of goroutines is left to chance on purpose.
	watched = 150
	// oneSteered is beside how many schedules there is one in which something rare is likely.
	oneSteered = 50
	cleanUp    = 25 // schedules between two collections of garbage
)

// total is what schedules did, together.
type total struct{ schedules, acts, deliveries, duplicates, kills, abandoned int }

func (s *total) add(o outcome) {
	s.schedules++
	s.acts += len(o.acts)
	s.deliveries += o.report.Deliveries
	s.duplicates += o.report.Duplicates
	s.kills += o.report.Incidents["kills"]
	s.abandoned += o.report.Abandoned
}

// runAll simulates seeds until one fails.
func runAll(t *testing.T, first, n uint64) (sum total, seed uint64, bad outcome, failed bool) {
	t.Helper()
	for seed := first; seed < first+n; seed++ {
		o := simulate(t, planOf(seed), nil, nil, false)
		if sum.add(o); len(o.report.Violations) > 0 {
			return sum, seed, o, true
		}
		if seed%cleanUp == 0 {
			runtime.GC()
		}
	}
	return sum, 0, bad, false
}

// C-91, C-92, C-93, C-95, C-96: whatever order statements, answers, messages, kills,
// lost leases, outages and operators come in, nothing is lost, invented, put out of order,
// given up or repeated without a reason, all comes to an end, and each step of the code is
// one of model/relay.pml. WAYBILL_FIRST and WAYBILL_SCHEDULES say which
// schedules; each processor has its share.
func TestSimulation_Schedules(t *testing.T) {
	n := uint64(ordinary)
	if long() {
		n = most
	}
	first, n := simtest.Number(t, "WAYBILL_FIRST", 0), simtest.Number(t, "WAYBILL_SCHEDULES", n)
	if os.Getenv(shardVar) != "" {
		begin := time.Now()
		sum, seed, bad, failed := runAll(t, first, n)
		for _, class := range []uint64{steered, twoLanes, transacted} {
			if !failed && first+n < steered {
				var rare total
				rare, seed, bad, failed = runAll(t, class+first/oneSteered, n/oneSteered)
				sum.schedules += rare.schedules
			}
		}
		if failed {
			fmt.Println(report(t, seed, bad))
			t.FailNow()
		}
		fmt.Printf("%+v in %v\n", sum, time.Since(begin).Round(time.Millisecond))
		return
	}
	_, seed, bad, failed := runAll(t, first, min(n, watched))
	if failed {
		t.Fatal(report(t, seed, bad))
	}
	shards(t, first, n)
}

// shardVar is set where a part of the schedules runs.
const shardVar = "WAYBILL_SHARD"

// shards runs the schedules in processes that the race detector doesn't watch: as many as
// there are processors, as each uses one.
func shards(t *testing.T, first, n uint64) {
	t.Helper()
	program := simtest.Build(t, nil, nil)
	each := (n + uint64(runtime.NumCPU()) - 1) / uint64(runtime.NumCPU())
	var parts sync.WaitGroup
	for at := uint64(0); at < n; at += each {
		parts.Go(func() {
			cmd := exec.CommandContext(t.Context(), program, "-test.run=TestSimulation_Schedules$", "-test.timeout=0")
			cmd.Env = append(os.Environ(), shardVar+"=1", fmt.Sprintf("WAYBILL_FIRST=%d", first+at), fmt.Sprintf("WAYBILL_SCHEDULES=%d", min(each, n-at)))
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%v:\n%s", err, out)
				return
			}
			t.Logf("from seed %d on: %s", first+at, strings.TrimSuffix(string(out), "PASS\n"))
		})
	}
	parts.Wait()
}

// kind is what a violation begins with: an attempt to make a schedule smaller has to find
// the same.
func kind(violation string) string {
	word, _, _ := strings.Cut(violation, ":")
	return word
}

// report says what a schedule violates, and the smallest one that was found which does
// the same.
func report(t *testing.T, seed uint64, bad outcome) string {
	t.Helper()
	acts, last := shrink(t, seed, bad, nil)
	return fmt.Sprintf("seed %d: %s\n%d acts of %d are enough:\n%s%s\nRun it with WAYBILL_SEED=%d go test ./internal/simulation -run TestSimulation_OneSeed -v",
		seed, strings.Join(bad.report.Violations, "\n"), len(acts), len(bad.acts), lines(acts), cmp.Or(strings.Join(last.report.Violations, "\n"), "it fails only as a whole"), seed)
}

// WAYBILL_SEED has one schedule run, and told.
func TestSimulation_OneSeed(t *testing.T) {
	seed := simtest.Number(t, "WAYBILL_SEED", 17)
	var off []string
	if text := os.Getenv("WAYBILL_WITHOUT"); text != "" {
		off = strings.Split(text, ",")
	}
	o := simulate(t, planOf(seed), off, nil, true)
	t.Logf("%+v\n%s", planOf(seed), o.trace)
	if len(o.report.Violations) > 0 {
		acts, last := shrink(t, seed, o, off)
		small := simulate(t, planOf(seed), off, acts, true)
		t.Fatalf("%s\n%d acts of %d are enough:\n%s\n%s", strings.Join(o.report.Violations, "\n"), len(acts), len(o.acts), small.trace, strings.Join(last.report.Violations, "\n"))
	}
}

// A seed is a schedule: run again it is the same, to the last statement and its values.
func TestSimulation_Replays(t *testing.T) {
	if os.Getenv(shardVar) == "" {
		cmd := exec.CommandContext(t.Context(), simtest.Build(t, nil, nil), "-test.run=TestSimulation_Replays$")
		cmd.Env = append(os.Environ(), shardVar+"=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return
	}
	n := uint64(200)
	if long() {
		n = 20_000
	}
	for i := range n + n/2 {
		seed := i
		switch {
		case i >= n+n/4:
			seed = transacted + i - n - n/4
		case i >= n:
			seed = twoLanes + i - n
		}
		a, b := simulate(t, planOf(seed), nil, nil, true), simulate(t, planOf(seed), nil, nil, true)
		require.Equal(t, a.trace, b.trace, "seed %d", seed)
		c := simulate(t, planOf(seed), nil, a.acts, true)
		require.Equal(t, a.trace, c.trace, "seed %d, from its acts", seed)
		if seed%cleanUp == 0 {
			runtime.GC()
		}
	}
}
