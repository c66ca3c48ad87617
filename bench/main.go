// Command bench measures Waybill beside the limit, the same work written by hand
// for exactly this case, and beside peers, on the same servers, in the same run.
//
//	cd bench && go run . [--scenario NAME] [--runs N] [--json]
//	cd bench && go run . floors [--scenario NAME] [--runs N] [--write]
//	cd bench && go run . envelope [--scale N] [--condition NAME]
//
// floors runs everything short and says which ratio to the limit has fallen by more
// than a fifth since floors.json was written. envelope says what a million rows,
// dead topics and the like cost, beside empty tables.
//
// It starts the servers (scripts/services) unless WAYBILL_POSTGRES and
// WAYBILL_KAFKA name some, works in a database and under topics of its own, and
// removes both at the end. What the peer Protean needs is put into
// .services/protean; where that fails, Protean is left out. Every run is verified
// by counting what it stored or by reading what it published; one that doesn't
// add up is an error.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/pprof"
	"slices"
	"strings"
	"time"
)

// work does something once and returns what it measured, by name.
type work func(context.Context, *world) (map[string]float64, error)

// scenario is one thing to measure; the first of metrics is the one that ratios
// are made of.
type scenario struct {
	name    string
	unit    string
	metrics []string
	less    bool // less of the first metric is better
	waybill work
	byHand  func(*tables) work // the limit, and the limit on new tables
	limit   work               // another; nil if there is none
	against string             // what it is
	best    bool               // the ratio is to the limit's best run
	peers   []peer
	named   bool // run only if it is named
}

// peer is another project at the same work.
type peer struct {
	name string
	unit string // what its figure is, if not the scenario's; then there is no ratio
	run  work
	// had says whether it can be had here, and if not, why; then it is left out.
	had func(context.Context, *world) bool
}

// sizes of what is done, and how long it lasts.
type sizes struct {
	events, large, history, resident, timers     int
	save, latency, steady, outage, silent, quiet time.Duration
}

var (
	usual = sizes{
		events: 100_000, large: 300_000, history: 1_000_000, resident: 1_000_000, timers: 1_000_000,
		save: 5 * time.Second, latency: 10 * time.Second, steady: 20 * time.Second, outage: 10 * time.Second, silent: 30 * time.Second, quiet: time.Minute,
	}
	short = sizes{
		events: 20_000, large: 60_000, history: 200_000, resident: 100_000, timers: 100_000,
		save: 2 * time.Second, latency: 4 * time.Second, steady: 5 * time.Second, outage: 4 * time.Second, silent: 5 * time.Second, quiet: 5 * time.Second,
	}
)

func scenarios(n sizes) []scenario {
	rate := []string{"rate"}
	withPurge, withoutPurge := purges(2_000_000, 2*time.Minute)
	withSmall, withoutSmall := purges(n.large, n.quiet)
	all := drainage{events: n.events, keys: n.events / 10}
	few := drainage{events: n.events, keys: 50}
	forwarded := drainage{events: 20_000, keys: 10_000}
	cloned := drainage{events: 5_000}
	deleted, once, aged, large := all, all, all, all
	once.exact = true
	deleted.delete, aged.history, large.events = true, n.history, n.large
	watched := large
	watched.snapshot = time.Minute
	return []scenario{
		{name: "save-1", unit: "units/s", metrics: rate, waybill: save(1, n.save), byHand: saveByHand(1, n.save)},
		{name: "save-8", unit: "units/s", metrics: rate, waybill: save(8, n.save), byHand: saveByHand(8, n.save)},
		{name: "latency-100", unit: "ms", metrics: percentiles, less: true, best: true, waybill: latency(100, n.latency), byHand: latencyByHand(100, n.latency)},
		{name: "latency-1000", unit: "ms", metrics: percentiles, less: true, best: true, waybill: latency(1000, n.latency), byHand: latencyByHand(1000, n.latency)},
		{name: "drain", unit: "events/s", metrics: drainMetrics, waybill: all.waybill, byHand: all.byHand, peers: []peer{
			{name: "watermill", run: forwarded.watermill},
			{name: "river", unit: "jobs/s that do nothing, without a broker", run: all.river},
			{name: "protean", run: cloned.protean, had: hasProtean},
		}},
		{name: "drain-50", unit: "events/s", metrics: drainMetrics, waybill: few.waybill, byHand: few.byHand},
		{name: "drain-delete", unit: "events/s", metrics: drainMetrics, waybill: deleted.waybill, byHand: deleted.byHand},
		{name: "drain-once", unit: "events/s", metrics: drainMetrics, waybill: once.waybill, limit: all.waybill, against: "at least once"},
		{name: "drain-history", unit: "events/s", metrics: drainMetrics, waybill: aged.waybill, limit: all.waybill, against: "without a history"},
		{name: "drain-snapshot", unit: "events/s", metrics: drainMetrics, waybill: watched.waybill, limit: large.waybill, against: "without a snapshot"},
		{
			name: "calls", unit: "events/s", metrics: numberMetrics, waybill: numbers(all, func(d drainage) work { return d.waybill }),
			byHand: func(t *tables) work { return numbers(all, func(d drainage) work { return d.byHand(t) }) },
		},
		{name: "steady", unit: "units/s", metrics: steadyMetrics, waybill: steady(n.steady), limit: unattended(n.steady), against: "without an engine"},
		{name: "rtt", unit: "per second", metrics: farMetrics, waybill: far(all, roundTrip, n.save), limit: far(all, 0, n.save), against: "without a delay"},
		{name: "outage", unit: "units/s", metrics: outageMetrics, waybill: outage(n.outage, true), limit: outage(n.outage, false), against: "without an outage"},
		{name: "afteroutage", unit: "events/s", metrics: afterOutageMetrics, waybill: afterOutage(true), limit: afterOutage(false), against: "without an outage"},
		{name: "overload", unit: "s", metrics: overloadMetrics, less: true, waybill: overload(n.outage)},
		{name: "wal", unit: "bytes/event", metrics: walMetrics, less: true, waybill: walOf(n.events / 5), byHand: walByHand(n.events / 5)},
		{name: "consume", unit: "effects/s", metrics: rate, waybill: consume(50), limit: consumeByHand(50), against: "by hand"},
		{name: "consume-1", unit: "effects/s", metrics: rate, waybill: consume(1), limit: consumeByHand(1), against: "by hand"},
		{name: "timer", unit: "timers/s", metrics: rate, waybill: setAndStop(n.save), limit: save(officeWriters, n.save), against: "saves with one event"},
		{name: "command", unit: "commands/s", metrics: rate, waybill: send(n.save), limit: save(officeWriters, n.save), against: "saves with one event"},
		{name: "step", unit: "steps/s", metrics: rate, waybill: step, limit: save(officeWriters, n.save), against: "saves with one event"},
		{
			name: "save-timers", unit: "units/s", metrics: rate, waybill: inOffice(n.timers, save(officeWriters, n.save)),
			limit: inOffice(0, save(officeWriters, n.save)), against: "without timers that wait",
		},
		{name: "save-history", unit: "units/s", metrics: keptMetrics, waybill: saveKept(true, n.save), limit: saveKept(false, n.save), against: "without the history"},
		{name: "drain-timers", unit: "events/s", metrics: rate, waybill: inOffice(n.timers, all.waybill), limit: inOffice(0, all.waybill), against: "without timers that wait"},
		{name: "rebuild", unit: "events/s", metrics: rate, waybill: rebuild(n.events), limit: rebuildByHand(n.events), against: "by hand"},
		{name: "retention", unit: "ms", metrics: purgeMetrics, less: true, waybill: withPurge, limit: withoutPurge, against: "without a purge", named: true},
		{name: "retention-300k", unit: "ms", metrics: purgeMetrics, less: true, waybill: withSmall, limit: withoutSmall, against: "without a purge"},
		{name: "memory", unit: "MiB", metrics: memoryMetrics, less: true, waybill: memory(n.resident, memoryIdle)},
		{name: "stalled", unit: "ms", metrics: percentiles, less: true, waybill: commits(true, n.silent), limit: commits(false, n.silent), against: "with a broker that answers"},
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out, log io.Writer) (err error) {
	if len(args) == 2 && args[0] == aloneArg {
		return beAlone(ctx, args[1], log)
	}
	if len(args) > 0 {
		switch args[0] {
		case floorsArg:
			return floors(ctx, args[1:], out, log)
		case envelopeArg:
			return envelope(ctx, args[1:], out, log)
		case recordArg:
			return record(ctx, args[1:], out, log)
		case figuresArg:
			return updateFigures(out)
		}
	}
	all := scenarios(usual)
	var names []string
	for _, s := range all {
		names = append(names, s.name)
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(log)
	only := flags.String("scenario", "", "one of "+strings.Join(names, ", ")+", or several with commas between; default all but retention, which takes twenty minutes")
	runs := flags.Int("runs", 3, "how often each is run; the table has the least, the median and the most")
	asJSON := flags.Bool("json", false, "a line of JSON per scenario, and nothing else on standard output")
	var to profiles
	flags.StringVar(&to.cpu, "cpuprofile", "", "write a CPU profile of Waybill's last run to this file")
	flags.StringVar(&to.allocs, "allocprofile", "", "write a profile of all that was allocated, setting up included, to this file")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || *runs < 1 {
		return fmt.Errorf("no arguments, please, and --runs of at least 1: %q", args)
	}
	chosen, err := choose(all, *only)
	if err != nil {
		return err
	}

	w, err := open(ctx, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close(context.WithoutCancel(ctx))) }()
	for _, s := range chosen {
		r, err := s.run(ctx, w, *runs, to)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if *asJSON {
			err = r.json(out)
		} else {
			err = r.text(out)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func choose(all []scenario, only string) ([]scenario, error) {
	if only == "" {
		return slices.DeleteFunc(all, func(s scenario) bool { return s.named }), nil
	}
	var chosen []scenario
	for name := range strings.SplitSeq(only, ",") {
		found := false
		for _, s := range all {
			if s.name == name {
				chosen, found = append(chosen, s), true
			}
		}
		if !found {
			return nil, fmt.Errorf("there is no scenario %q; see --help", name)
		}
	}
	return chosen, nil
}

// run takes turns, so that whatever else the machine does meets all.
func (s scenario) run(ctx context.Context, w *world, runs int, to profiles) (result, error) {
	r := result{scenario: s, waybill: measured{}, limit: measured{}, fresh: measured{}}
	turns := []turn{{"Waybill", to.of(s.waybill), r.waybill}}
	switch {
	case s.byHand != nil:
		turns = append(turns, turn{"by hand", s.byHand(first), r.limit}, turn{"by hand, on new tables", s.byHand(second), r.fresh})
	case s.limit != nil:
		turns = append(turns, turn{s.against, s.limit, r.limit})
	}
	r.scenario.peers = nil
	for _, p := range s.peers {
		if p.had == nil || p.had(ctx, w) {
			r.scenario.peers, r.theirs = append(r.scenario.peers, p), append(r.theirs, measured{})
			turns = append(turns, turn{p.name, p.run, r.theirs[len(r.theirs)-1]})
		}
	}
	for n := range runs {
		for i := range turns {
			t := turns[(n+i)%len(turns)] // each run another is the first, who pays for servers that have had nothing to do
			w.log("%s, run %d of %d: %s", s.name, n+1, runs, t.who)
			got, err := t.do(ctx, w)
			if err != nil {
				return r, fmt.Errorf("%s: %w", t.who, err)
			}
			for metric, v := range got {
				t.into[metric] = append(t.into[metric], v)
			}
		}
	}
	return r, nil
}

// turn is somebody's in a run.
type turn struct {
	who  string
	do   work
	into measured
}

// profiles are files; empty: none.
type profiles struct{ cpu, allocs string }

// of is do with its profiles; those of the last run stay.
func (p profiles) of(do work) work {
	return func(ctx context.Context, w *world) (map[string]float64, error) {
		if p.cpu != "" {
			f, err := os.Create(p.cpu)
			if err != nil {
				return nil, err
			}
			defer f.Close()
			if err := pprof.StartCPUProfile(f); err != nil {
				return nil, err
			}
		}
		got, err := do(ctx, w)
		pprof.StopCPUProfile()
		if p.allocs != "" {
			f, openErr := os.Create(p.allocs)
			if openErr != nil {
				return nil, cmp.Or(err, openErr)
			}
			defer f.Close()
			err = cmp.Or(err, pprof.Lookup("allocs").WriteTo(f, 0))
		}
		return got, err
	}
}
