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

// result has, by metric, one number per run.
type result struct {
	scenario
	waybill, limit map[string][]float64
}

func (result) add(into map[string][]float64, got map[string]float64) {
	for metric, v := range got {
		into[metric] = append(into[metric], v)
	}
}

// ratio compares medians. For a rate more is better, for a latency less.
func (r result) ratio(metric string) float64 {
	limit := spreadOf(r.limit[metric]).Median
	if limit == 0 {
		return 0
	}
	return spreadOf(r.waybill[metric]).Median / limit
}

// pair is one metric of both.
type pair struct {
	Waybill spread  `json:"waybill"`
	Limit   spread  `json:"limit"`
	Ratio   float64 `json:"ratio"`
}

// line is the form of --json. Waybill, Limit and Ratios are those of the first
// metric; Metrics has all where there are several.
type line struct {
	Scenario string             `json:"scenario"`
	Unit     string             `json:"unit"`
	Waybill  spread             `json:"waybill"`
	Limit    spread             `json:"limit"`
	Peers    map[string]spread  `json:"peers"`
	Ratios   map[string]float64 `json:"ratios"`
	Metrics  map[string]pair    `json:"metrics,omitempty"`
}

func (r result) json(out io.Writer) error {
	first := r.metrics[0]
	l := line{
		Scenario: r.name, Unit: r.unit,
		Waybill: spreadOf(r.waybill[first]), Limit: spreadOf(r.limit[first]),
		Peers: map[string]spread{}, Ratios: map[string]float64{"limit": r.ratio(first)},
	}
	if len(r.metrics) > 1 {
		l.Unit = r.unit + " (" + first + ")"
		l.Metrics = map[string]pair{}
		for metric := range maps.Keys(r.waybill) {
			l.Metrics[metric] = pair{spreadOf(r.waybill[metric]), spreadOf(r.limit[metric]), r.ratio(metric)}
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
		parts = append(parts, fmt.Sprintf("%s%s against %s, ratio %.2f", name,
			spreadOf(r.waybill[metric]), spreadOf(r.limit[metric]), r.ratio(metric)))
	}
	_, err := fmt.Fprintf(out, "%-13s %s (%s)\n", r.name, strings.Join(parts, "; "), r.unit)
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
