package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

const (
	envelopeArg = "envelope"

	// within is how many times as much as on empty tables a figure may be.
	within = 2.0

	envelopeRate    = 50 // live units per second
	envelopeLive    = 20 * time.Second
	envelopeIdle    = time.Minute
	envelopeDrained = 50_000 // live rows
	liveKeys        = 5_000
)

// envelopeMetrics, in this order. Times of servers are processor time of the
// backends, and are left out where the server's processes can't be seen from here.
var envelopeMetrics = []metric{
	{name: "first ms", free: true}, // from the engine's start to the first live row
	{name: "live p50 ms", least: 1},
	{name: "live p99 ms", least: 5},
	{name: "rows/s", more: true},
	{name: "server µs/row"},
	{name: "idle transactions/s", least: 0.5},
	{name: "idle server ms/s", least: 0.5},
	{name: "idle process ms/s", least: 1},
}

// metric of the envelope: less is better unless more is, and what is below least
// counts as least, as nothing that small means anything. A free one is not judged.
type metric struct {
	name  string
	more  bool
	free  bool
	least float64
}

// ratio to an empty table's figure; above 1 is worse.
func (m metric) ratio(got, empty float64) float64 {
	got, empty = max(got, m.least), max(empty, m.least)
	if m.more {
		got, empty = empty, got
	}
	if empty == 0 {
		return 0
	}
	return got / empty
}

// envelope measures every condition beside empty tables, in a table; what is not
// within twice is an error.
func envelope(ctx context.Context, args []string, out, log io.Writer) (err error) {
	flags := flag.NewFlagSet("bench "+envelopeArg, flag.ContinueOnError)
	flags.SetOutput(log)
	scale := flags.Float64("scale", 1, "of all sizes and times: 0.01 says whether it works, and no more")
	var names []string
	for _, c := range conditions(1) {
		names = append(names, c.name)
	}
	only := flags.String("condition", "", "one of "+strings.Join(names, ", ")+", or several with commas between; default all")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || *scale <= 0 {
		return fmt.Errorf("no arguments, please, and a --scale above 0: %q", args)
	}
	chosen, err := chooseConditions(conditions(*scale), *only)
	if err != nil {
		return err
	}
	w, err := open(ctx, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close(context.WithoutCancel(ctx))) }()
	w.log("empty tables")
	m := newMeasuring(*scale)
	empty, err := m.run(ctx, w, condition{name: "empty"})
	if err != nil {
		return fmt.Errorf("empty tables: %w", err)
	}
	all := []looks{empty}
	var failed []error // those that were measured have their rows all the same
	for _, c := range chosen {
		w.log("%s", c.name)
		err := w.connects(ctx, c)
		var got looks
		if err == nil {
			got, err = m.run(ctx, w, c)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", c.name, err))
			continue
		}
		all = append(all, got)
	}
	return errors.Join(printEnvelope(out, all), errors.Join(failed...))
}

func chooseConditions(all []condition, only string) ([]condition, error) {
	if only == "" {
		return all, nil
	}
	var chosen []condition
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(all, func(c condition) bool { return c.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no condition %q; see --help", name)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// looks are what a condition gave, by metric.
type looks struct {
	name string
	of   map[string]float64
}

// printEnvelope compares all with the first, with empty tables.
func printEnvelope(out io.Writer, all []looks) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "condition")
	for _, m := range envelopeMetrics {
		fmt.Fprintf(t, "\t%s", m.name)
	}
	fmt.Fprintln(t, "\t")
	var worse []string
	for i, f := range all {
		fmt.Fprint(t, f.name)
		for _, m := range envelopeMetrics {
			got, measured := f.of[m.name]
			empty, known := all[0].of[m.name]
			switch {
			case !measured:
				fmt.Fprint(t, "\t-")
			case i == 0 || m.free || !known:
				fmt.Fprintf(t, "\t%.1f", got)
			default:
				ratio := m.ratio(got, empty)
				fmt.Fprintf(t, "\t%.1f (%.2f)", got, ratio)
				if ratio > within {
					worse = append(worse, fmt.Sprintf("%s, %s: %.1f times", f.name, m.name, ratio))
				}
			}
		}
		fmt.Fprintln(t, "\t")
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(worse) > 0 {
		return fmt.Errorf("more than twice what it is on empty tables:\n  %s", strings.Join(worse, "\n  "))
	}
	return nil
}
