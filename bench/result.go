package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// spread is what several runs of one thing gave.
type spread struct {
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
}

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

// pair is one metric of both, or of Waybill alone where the limit has none.
type pair struct {
	Waybill  spread  `json:"waybill"`
	Limit    *spread `json:"limit,omitempty"`
	Ratio    float64 `json:"ratio,omitempty"`
	LimitNew *spread `json:"limit_new_tables,omitempty"`
	RatioNew float64 `json:"ratio_new_tables,omitempty"`
}

// line is the form of --json. Waybill, Limit and Ratios are those of the first
// metric, as far as there is a limit; Metrics has all where there are several.
type line struct {
	Scenario string             `json:"scenario"`
	Unit     string             `json:"unit"`
	Waybill  spread             `json:"waybill"`
	Limit    *spread            `json:"limit,omitempty"`
	LimitNew *spread            `json:"limit_new_tables,omitempty"`
	Peers    map[string]spread  `json:"peers"`
	Ratios   map[string]float64 `json:"ratios"`
	Metrics  map[string]pair    `json:"metrics,omitempty"`
}

func (r result) json(out io.Writer) error {
	first := r.metrics[0]
	l := line{
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
		l.Metrics = map[string]pair{}
		for metric := range maps.Keys(r.waybill) {
			both := pair{Waybill: spreadOf(r.waybill[metric])}
			if limit := spreadOf(r.limit[metric]); r.limit[metric] != nil {
				both.Limit, both.Ratio = &limit, r.ratio(metric, r.limit)
			}
			if limit := spreadOf(r.fresh[metric]); r.fresh[metric] != nil {
				both.LimitNew, both.RatioNew = &limit, r.ratio(metric, r.fresh)
			}
			l.Metrics[metric] = both
		}
	}
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s\n", b)
	return err
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

// String has as many decimals as mean something.
func (s spread) String() string {
	decimals := 0
	if s.Median < 100 {
		decimals = 2
	}
	return fmt.Sprintf("%.*f / %.*f / %.*f", decimals, s.Min, decimals, s.Median, decimals, s.Max)
}
