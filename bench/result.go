package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/waybill-go/waybill/internal/figures"
)

// spread is what several runs of one thing gave.
type spread = figures.Spread

func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{}
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	median := sorted[middle]
	if len(sorted)%2 == 0 {
		median = (sorted[middle-1] + sorted[middle]) / 2
	}
	return spread{Min: sorted[0], Median: median, Max: sorted[len(sorted)-1]}
}

// measured has, by metric, one number per run.
type measured map[string][]float64

type result struct {
	scenario
	waybill, limit, fresh measured   // fresh: the limit on new tables
	theirs                []measured // one for each of the scenario's
}

// ratio compares medians, or Waybill's to the limit's best run. For a rate more is
// better, for a latency less.
func (r result) ratio(metric string, other measured) float64 {
	all := spreadOf(other[metric])
	against := all.Median
	if r.best {
		against = all.Min
		if !r.less || metric == "units/s" {
			against = all.Max
		}
	}
	if against == 0 {
		return 0
	}
	return spreadOf(r.waybill[metric]).Median / against
}

// onNew is the limit on new tables among ratios.
const onNew = "limit, new tables"

func (r result) json(out io.Writer) error {
	b, err := json.Marshal(r.figures())
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s\n", b)
	return err
}

// figures is the form of --json, and of what is recorded.
func (r result) figures() figures.Scenario {
	first := r.metrics[0]
	l := figures.Scenario{
		Scenario: r.name, Unit: r.unit,
		Waybill: spreadOf(r.waybill[first]),
		Peers:   map[string]spread{}, Ratios: map[string]float64{},
	}
	if r.limit[first] != nil {
		limit := spreadOf(r.limit[first])
		l.Limit, l.Ratios["limit"] = &limit, r.ratio(first, r.limit)
	}
	if r.fresh[first] != nil {
		limit := spreadOf(r.fresh[first])
		l.LimitNew, l.Ratios[onNew] = &limit, r.ratio(first, r.fresh)
	}
	for i, p := range r.scenario.peers {
		l.Peers[p.name] = spreadOf(r.theirs[i][first])
		if p.unit == "" {
			l.Ratios[p.name] = r.ratio(first, r.theirs[i])
		}
	}
	if len(r.metrics) > 1 {
		l.Unit = r.unit + " (" + first + ")"
		l.Metrics = map[string]figures.Pair{}
		for metric := range maps.Keys(r.waybill) {
			both := figures.Pair{Waybill: spreadOf(r.waybill[metric])}
			if limit := spreadOf(r.limit[metric]); r.limit[metric] != nil {
				both.Limit, both.Ratio = &limit, r.ratio(metric, r.limit)
			}
			if limit := spreadOf(r.fresh[metric]); r.fresh[metric] != nil {
				both.LimitNew, both.RatioNew = &limit, r.ratio(metric, r.fresh)
			}
			l.Metrics[metric] = both
		}
	}
	return l
}

func (r result) text(out io.Writer) error {
	var parts []string
	for _, metric := range r.metrics {
		name := ""
		if len(r.metrics) > 1 {
			name = metric + " "
		}
		part := name + spreadOf(r.waybill[metric]).String()
		if r.limit[metric] != nil {
			part += fmt.Sprintf(" against %s, ratio %.2f", spreadOf(r.limit[metric]), r.ratio(metric, r.limit))
		}
		if r.fresh[metric] != nil {
			part += fmt.Sprintf(", new tables %s, ratio %.2f", spreadOf(r.fresh[metric]), r.ratio(metric, r.fresh))
		}
		parts = append(parts, part)
	}
	first := r.metrics[0]
	for i, p := range r.scenario.peers {
		part := p.name + " " + spreadOf(r.theirs[i][first]).String()
		if p.unit == "" {
			part += fmt.Sprintf(", ratio %.2f", r.ratio(first, r.theirs[i]))
		} else {
			part += " " + p.unit
		}
		parts = append(parts, part)
	}
	_, err := fmt.Fprintf(out, "%-14s %s (%s)\n", r.name, strings.Join(parts, "; "), r.unit)
	return err
}
