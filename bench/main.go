// Command bench measures Waybill beside the limit, the same work written by hand
// for exactly this case, and beside peers, on the same servers, in the same run.
//
//	cd bench && go run . [--scenario NAME] [--runs N] [--json]
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
	waybill work
	limit   work   // nil if there is none
	against string // what the limit is, if not the same work by hand
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

func scenarios() []scenario {
	rate := []string{"rate"}
	withPurge, withoutPurge := purges(2_000_000, 2*time.Minute)
	withSmall, withoutSmall := purges(300_000, time.Minute)
	all := drainage{events: 100_000, keys: 10_000}
	few := drainage{events: 100_000, keys: 50}
	forwarded := drainage{events: 20_000, keys: 10_000}
	cloned := drainage{events: 5_000}
	deleted, aged, large := all, all, all
	deleted.delete, aged.history, large.events = true, 1_000_000, 300_000
	watched := large
	watched.snapshot = time.Minute
	return []scenario{
		{name: "save-1", unit: "units/s", metrics: rate, waybill: save(1), limit: saveByHand(1)},
		{name: "save-8", unit: "units/s", metrics: rate, waybill: save(8), limit: saveByHand(8)},
		{name: "latency-100", unit: "ms", metrics: percentiles, waybill: latency(100), limit: latencyByHand(100)},
		{name: "latency-1000", unit: "ms", metrics: percentiles, waybill: latency(1000), limit: latencyByHand(1000)},
		{name: "drain", unit: "events/s", metrics: rate, waybill: all.waybill, limit: all.byHand, peers: []peer{
			{name: "watermill", run: forwarded.watermill},
			{name: "river", unit: "jobs/s that do nothing, without a broker", run: all.river},
			{name: "protean", run: cloned.protean, had: hasProtean},
		}},
		{name: "drain-50", unit: "events/s", metrics: rate, waybill: few.waybill, limit: few.byHand},
		{name: "drain-delete", unit: "events/s", metrics: rate, waybill: deleted.waybill, limit: deleted.byHand},
		{name: "drain-history", unit: "events/s", metrics: rate, waybill: aged.waybill, limit: all.waybill, against: "without a history"},
		{name: "drain-snapshot", unit: "events/s", metrics: rate, waybill: watched.waybill, limit: large.waybill, against: "without a snapshot"},
		{name: "workers", unit: "events/s", metrics: numberMetrics, waybill: numbers(all, func(d drainage) work { return d.waybill }), limit: numbers(all, func(d drainage) work { return d.byHand })},
		{name: "steady", unit: "units/s", metrics: steadyMetrics, waybill: steady(steadyTime), limit: unattended(steadyTime), against: "without an engine"},
		{name: "rtt", unit: "per second", metrics: farMetrics, waybill: far(all, roundTrip), limit: far(all, 0), against: "without a delay"},
		{name: "outage", unit: "units/s", metrics: outageMetrics, waybill: outage(outageTime, true), limit: outage(outageTime, false), against: "without an outage"},
		{name: "consume", unit: "effects/s", metrics: rate, waybill: consume(50), limit: consumeByHand(50)},
		{name: "consume-1", unit: "effects/s", metrics: rate, waybill: consume(1), limit: consumeByHand(1)},
		{name: "retention", unit: "ms", metrics: purgeMetrics, waybill: withPurge, limit: withoutPurge, against: "without a purge", named: true},
		{name: "retention-300k", unit: "ms", metrics: purgeMetrics, waybill: withSmall, limit: withoutSmall, against: "without a purge"},
		{name: "memory", unit: "MiB", metrics: memoryMetrics, waybill: memory(memoryRows, memoryIdle)},
		{name: "stalled", unit: "ms", metrics: percentiles, waybill: commits(true), limit: commits(false), against: "with a broker that answers"},
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
	all := scenarios()
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
	r := result{scenario: s, waybill: measured{}, limit: measured{}}
	r.scenario.peers = nil
	for _, p := range s.peers {
		if p.had == nil || p.had(ctx, w) {
			r.scenario.peers, r.theirs = append(r.scenario.peers, p), append(r.theirs, measured{})
		}
	}
	turn := func(n int, who string, do work, into measured) error {
		w.log("%s, run %d of %d: %s", s.name, n+1, runs, who)
		got, err := do(ctx, w)
		if err != nil {
			return fmt.Errorf("%s: %w", who, err)
		}
		for metric, v := range got {
			into[metric] = append(into[metric], v)
		}
		return nil
	}
	for n := range runs {
		if err := turn(n, "Waybill", to.of(s.waybill), r.waybill); err != nil {
			return r, err
		}
		if s.limit != nil {
			if err := turn(n, cmp.Or(s.against, "by hand"), s.limit, r.limit); err != nil {
				return r, err
			}
		}
		for i, p := range r.scenario.peers {
			if err := turn(n, p.name, p.run, r.theirs[i]); err != nil {
				return r, err
			}
		}
	}
	return r, nil
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
