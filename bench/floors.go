package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"text/tabwriter"
)

const (
	// floorsArg is the command that compares ratios with those that were reached.
	floorsArg  = "floors"
	floorsFile = "floors.json"

	// fallen is what a ratio may lose until it counts.
	fallen = 0.2
)

// errFell says that something is slower than it was.
var errFell = errors.New("ratios have fallen by more than a fifth, see the table")

// floors runs scenarios short, prints each ratio beside its floor, and fails if one
// has fallen. With --write what was reached are the floors.
func floors(ctx context.Context, args []string, out, log io.Writer) (err error) {
	flags := flag.NewFlagSet("bench "+floorsArg, flag.ContinueOnError)
	flags.SetOutput(log)
	only := flags.String("scenario", "", "one or several with commas between; default all that have a limit")
	runs := flags.Int("runs", 3, "how often each is run")
	write := flags.Bool("write", false, "make what is reached the floors, in "+floorsFile)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || *runs < 1 {
		return fmt.Errorf("no arguments, please, and --runs of at least 1: %q", args)
	}
	chosen, err := choose(scenarios(short), *only)
	if err != nil {
		return err
	}
	was, err := readFloors(floorsFile)
	if err != nil {
		return err
	}
	got, err := ratios(ctx, chosen, *runs, log)
	if err != nil {
		return err
	}
	verdicts := compare(was, got, *only == "")
	if err := printVerdicts(out, verdicts); err != nil {
		return err
	}
	if *write {
		for _, r := range got {
			was[r.name] = r.ratio
		}
		return writeFloors(floorsFile, was)
	}
	if slices.ContainsFunc(verdicts, func(v verdict) bool { return v.fell }) {
		return errFell
	}
	return nil
}

// ratios runs each scenario that has a limit, without peers.
func ratios(ctx context.Context, chosen []scenario, runs int, log io.Writer) (all []reached, err error) {
	w, err := open(ctx, log)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close(context.WithoutCancel(ctx))) }()
	for _, s := range chosen {
		if s.limit == nil && s.byHand == nil {
			continue
		}
		s.peers = nil
		r, err := s.run(ctx, w, runs, profiles{})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		all = append(all, reached{name: s.name, ratio: r.ratio(s.metrics[0], r.limit), less: s.less})
	}
	return all, nil
}

// reached is the ratio of a scenario, of which less or more is better.
type reached struct {
	name  string
	ratio float64
	less  bool
}

type verdict struct {
	name       string
	floor, now float64 // 0: none
	change     float64 // as a part of the floor; below 0 is worse
	fell       bool
}

// compare says of each scenario whether it fell; if all were run, one that has a
// floor and no ratio any more did, too.
func compare(floors map[string]float64, got []reached, all bool) []verdict {
	var verdicts []verdict
	seen := map[string]bool{}
	for _, r := range got {
		seen[r.name] = true
		v := verdict{name: r.name, floor: floors[r.name], now: r.ratio}
		switch {
		case v.floor > 0 && v.now <= 0:
			v.fell = true
		case v.floor > 0:
			rate := v.now / v.floor
			if r.less {
				rate = v.floor / v.now
			}
			v.change = rate - 1
			v.fell = v.change < -fallen
		}
		verdicts = append(verdicts, v)
	}
	for _, name := range slices.Sorted(maps.Keys(floors)) {
		if all && !seen[name] {
			verdicts = append(verdicts, verdict{name: name, floor: floors[name], fell: true})
		}
	}
	return verdicts
}

func printVerdicts(out io.Writer, verdicts []verdict) error {
	number := func(f float64) string {
		if f == 0 {
			return "-"
		}
		return fmt.Sprintf("%.2f", f)
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "scenario\tfloor\tratio\tchange\t")
	for _, v := range verdicts {
		change, note := "-", ""
		if v.floor > 0 && v.now > 0 {
			change = fmt.Sprintf("%+.0f %%", 100*v.change)
		}
		if v.fell {
			note = "FELL"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", v.name, number(v.floor), number(v.now), change, note)
	}
	return t.Flush()
}

// readFloors takes a file that isn't there as one without floors.
func readFloors(name string) (map[string]float64, error) {
	floors := map[string]float64{}
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return floors, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &floors)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w; run bench in its folder, or write it anew with `bench floors --write`", name, err)
	}
	return floors, nil
}

// writeFloors keeps what means something, so that a diff shows it.
func writeFloors(name string, floors map[string]float64) error {
	for s, ratio := range floors {
		floors[s] = float64(int(ratio*1000+0.5)) / 1000
	}
	b, err := json.MarshalIndent(floors, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(b, '\n'), 0o644)
}
