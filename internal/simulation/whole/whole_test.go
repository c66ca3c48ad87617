package whole

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/simulation/simtest"
)

const (
	ordinary = 40
	longRun  = 20_000
	// Of those with timers; of those with processes half as many.
	ordinaryTimed = 20
	longRunTimed  = 10_000

	cleanUp = 5 // schedules between two collections of garbage
	longest = 20 * time.Second
)

// inside is set in the program in which schedules run: see patches.
const inside = "WAYBILL_WHOLE"

// outcome is what is left of a schedule.
type outcome struct {
	wrongs []string
	acts   []act
	trace  string
	units  int
	kills  int
	doubly int            // messages that came more than once
	rang   int            // timers
	asked  int            // commands that were done
	ends   map[string]int // of processes
}

// simulate runs a schedule: that of a plan's seed, or the recorded one.
func simulate(t *testing.T, template []byte, p plan, recorded []act, tell bool) (o outcome) {
	t.Helper()
	db, err := openDatabase(t.TempDir(), template)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.close()) }()
	synctest.Test(t, func(t *testing.T) {
		cryptotest.SetGlobalRandom(t, p.seed)
		dice = rand.New(rand.NewPCG(p.seed, 9))
		p.epoch = time.Now()
		w := &world{plan: p, db: db, tried: map[string]int{}, settled: map[string]bool{}, ops: map[string]*op{}, ids: map[string]*transactions{}, journeys: map[string]int{}}
		for range journeyTopics {
			w.more = append(w.more, &group{})
		}
		for _, g := range w.groups() {
			g.share(0)
			for part := range parts {
				g.acked[part] = map[int]bool{}
			}
		}
		if tell {
			w.trace = &strings.Builder{}
		}
		d := &director{w: w, random: rand.New(rand.NewPCG(p.seed, 7)), replays: recorded != nil, recorded: recorded}
		d.run()
		w.judge()
		o = outcome{wrongs: w.wrongs, acts: w.acts, units: len(w.ops), rang: w.rang, asked: w.asked, ends: w.journeys}
		for _, proc := range w.procs {
			if proc.killed {
				o.kills++
			}
		}
		for _, g := range w.groups() {
			o.doubly += g.doubly()
		}
		if tell {
			o.trace = w.trace.String()
		}
	})
	return o
}

// C-91, C-92, C-93, C-94, C-96: units of work, relays and subscriptions together, in whatever order
// statements, answers, messages, kills, rebalances, outages, retries and operators come: what a
// caller was told is so, each effect is there once, per key in order, nothing is lost, and
// nothing stands still.
func TestWhole_Schedules(t *testing.T) {
	if os.Getenv(inside) == "" {
		t.Log(run(t, program(t), "TestWhole_Schedules"))
		return
	}
	n, timers := uint64(ordinary), uint64(ordinaryTimed)
	if long() {
		n, timers = longRun, longRunTimed
	}
	file := template(t)
	first := simtest.Number(t, "WAYBILL_FIRST", 0)
	schedules(t, file, first, simtest.Number(t, "WAYBILL_SCHEDULES", n))
	if first == 0 {
		schedules(t, file, timed, timers)
		schedules(t, file, travelled, timers/2)
	}
}

// schedules runs n of them.
func schedules(t *testing.T, file []byte, first, n uint64) {
	t.Helper()
	begin := simtest.Processor(t)
	var sum struct {
		schedules, acts, units, kills, doubly, rang, asked int
		ends                                               map[string]int
	}
	sum.ends = map[string]int{}
	for seed := first; seed < first+n; seed++ {
		o := simulate(t, file, planOf(seed), nil, false)
		if len(o.wrongs) > 0 {
			t.Fatal(report(t, file, seed, o))
		}
		sum.schedules++
		sum.acts += len(o.acts)
		sum.units += o.units
		sum.kills += o.kills
		sum.doubly += o.doubly
		sum.rang += o.rang
		sum.asked += o.asked
		for end, n := range o.ends {
			sum.ends[end] += n
		}
		if seed%cleanUp == 0 {
			runtime.GC()
		}
	}
	fmt.Printf("%+v in %v of a processor\n", sum, (simtest.Processor(t) - begin).Round(time.Millisecond))
}

// A seed is a schedule: run again, also from its acts, it is the same to the last statement.
func TestWhole_Replays(t *testing.T) {
	if os.Getenv(inside) == "" {
		t.Log(run(t, program(t), "TestWhole_Replays"))
		return
	}
	seeds := uint64(20)
	if long() {
		seeds = 500
	}
	// The ids of a schedule go on behind those of the one before, and numbers of goroutines.
	ids := regexp.MustCompile(`[xX]'[0-9a-f]*'|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|goroutine \d+|bubble \d+|0x[0-9a-f]+`)
	traceOf := func(o outcome) string { return unordered(ids.ReplaceAllString(o.trace, "id")) }
	file := template(t)
	for n := range seeds {
		seed := n + []uint64{0, timed, travelled}[n%3]
		var first, again string
		// On a machine that is too busy to run this program for 10 ms, the runtime has another
		// goroutine go on in the place of the one that was running.
		for range 3 {
			o := simulate(t, file, planOf(seed), nil, true)
			first = traceOf(o)
			if again = traceOf(simulate(t, file, planOf(seed), o.acts, true)); again == first {
				break
			}
		}
		require.Equal(t, first, again, "seed %d", seed)
	}
}

// unordered has units that end at the same time in one order: those of a process that is
// killed end in any, as their contexts are canceled.
func unordered(trace string) string {
	lines := strings.Split(trace, "\n")
	for begin := 0; begin < len(lines); begin++ {
		end := begin
		for end < len(lines) && strings.Contains(lines[end], " unit op") {
			end++
		}
		slices.Sort(lines[begin:end])
		begin = end
	}
	return strings.Join(lines, "\n")
}

// run runs a test in the program.
func run(t *testing.T, program, test string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, "-test.run="+test+"$", "-test.timeout=0", "-test.v")
	cmd.Env = append(os.Environ(), inside+"=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// kind is what a violation begins with.
func kind(wrong string) string {
	word, _, _ := strings.Cut(wrong, ":")
	return word
}

// smaller is the smallest schedule that was found which fails in the same way.
func smaller(t *testing.T, file []byte, seed uint64, bad outcome) []act {
	t.Helper()
	want := kind(bad.wrongs[0])
	return simtest.Shrink(bad.acts, longest, func(acts []act) ([]act, bool) {
		o := simulate(t, file, planOf(seed), acts, false)
		return o.acts, slices.ContainsFunc(o.wrongs, func(what string) bool { return kind(what) == want })
	})
}

func report(t *testing.T, file []byte, seed uint64, bad outcome) string {
	t.Helper()
	acts := smaller(t, file, seed, bad)
	return fmt.Sprintf("seed %d: %s\n%d acts of %d are enough:\n%s\nRun it with WAYBILL_SEED=%d go test ./internal/simulation/whole -run OneSeed -v",
		seed, strings.Join(bad.wrongs, "\n"), len(acts), len(bad.acts), lines(acts), seed)
}

// WAYBILL_SEED has one schedule run, and told.
func TestWhole_OneSeed(t *testing.T) {
	if os.Getenv(inside) == "" {
		t.Log(run(t, program(t), "TestWhole_OneSeed"))
		return
	}
	seed, file := simtest.Number(t, "WAYBILL_SEED", 17), template(t)
	o := simulate(t, file, planOf(seed), nil, true)
	t.Logf("%+v\n%s", planOf(seed), o.trace)
	if len(o.wrongs) > 0 {
		acts := smaller(t, file, seed, o)
		small := simulate(t, file, planOf(seed), acts, true)
		t.Fatalf("%s\n%d acts of %d are enough:\n%s\n%s", strings.Join(o.wrongs, "\n"), len(acts), len(o.acts), small.trace, strings.Join(small.wrongs, "\n"))
	}
}
