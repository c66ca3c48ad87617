// Command bench measures Waybill beside the limit: the same work written by hand
// for exactly this case, on the same servers, in the same run.
//
//	cd bench && go run . [--scenario NAME] [--runs N] [--json]
//
// It starts the servers (scripts/services) unless WAYBILL_POSTGRES and
// WAYBILL_KAFKA name some, works in a database and under topics of its own, and
// removes both at the end. Every run is verified by counting what it stored or
// by reading what it published; one that doesn't add up is an error.
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

// scenario is one thing to measure. A run returns what it measured, by name; the
// first of metrics is the one that ratios are made of.
type scenario struct {
	name    string
	unit    string
	metrics []string
	waybill func(context.Context, *world) (map[string]float64, error)
	limit   func(context.Context, *world) (map[string]float64, error)
	against string // what the limit is, if not the same work by hand
}

// long is run only if it is named.
const long = "purge"

func scenarios() []scenario {
	rate := []string{"rate"}
	withPurge, withoutPurge := purges(2_000_000, 2*time.Minute)
	withSmall, withoutSmall := purges(300_000, time.Minute)
	return []scenario{
		{"save-1", "units/s", rate, save(1), saveByHand(1), ""},
		{"save-8", "units/s", rate, save(8), saveByHand(8), ""},
		{"latency-100", "ms", percentiles, latency(100), latencyByHand(100), ""},
		{"latency-1000", "ms", percentiles, latency(1000), latencyByHand(1000), ""},
		{"drain", "events/s", rate, drain(10_000), drainByHand(10_000), ""},
		{"drain-50", "events/s", rate, drain(50), drainByHand(50), ""},
		{"consume", "effects/s", rate, consume(50), consumeByHand(50), ""},
		{"consume-1", "effects/s", rate, consume(1), consumeByHand(1), ""},
		{long, "ms", purgeMetrics, withPurge, withoutPurge, "without a purge"},
		{"purge-300k", "ms", purgeMetrics, withSmall, withoutSmall, "without a purge"},
		{"stalled", "ms", percentiles, commits(true), commits(false), "with a broker that answers"},
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
	all := scenarios()
	var names []string
	for _, s := range all {
		names = append(names, s.name)
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(log)
	only := flags.String("scenario", "", "one of "+strings.Join(names, ", ")+", or several with commas between; default all but "+long+", which takes twenty minutes")
	runs := flags.Int("runs", 3, "how often each is run; the table has the least, the median and the most")
	asJSON := flags.Bool("json", false, "a line of JSON per scenario, and nothing else on standard output")
	profile := flags.String("cpuprofile", "", "write a CPU profile of Waybill's runs to this file")
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
		r, err := s.run(ctx, w, *runs, *profile)
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
		return slices.DeleteFunc(all, func(s scenario) bool { return s.name == long }), nil
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

// run takes turns, so that whatever else the machine does meets both.
func (s scenario) run(ctx context.Context, w *world, runs int, profile string) (result, error) {
	r := result{scenario: s, waybill: map[string][]float64{}, limit: map[string][]float64{}}
	for n := range runs {
		w.log("%s, run %d of %d: Waybill", s.name, n+1, runs)
		got, err := profiled(ctx, w, profile, s.waybill)
		if err != nil {
			return r, err
		}
		r.add(r.waybill, got)
		against := cmp.Or(s.against, "by hand")
		w.log("%s, run %d of %d: %s", s.name, n+1, runs, against)
		if got, err = s.limit(ctx, w); err != nil {
			return r, fmt.Errorf("%s: %w", against, err)
		}
		r.add(r.limit, got)
	}
	return r, nil
}

// profiled keeps the profile of the last run.
func profiled(ctx context.Context, w *world, path string, do func(context.Context, *world) (map[string]float64, error)) (map[string]float64, error) {
	if path == "" {
		return do(ctx, w)
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, cmp.Or(f.Close(), err)
	}
	got, err := do(ctx, w)
	pprof.StopCPUProfile()
	return got, cmp.Or(err, f.Close())
}
