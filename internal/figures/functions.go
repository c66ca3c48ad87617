package figures

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"text/template"
)

// functions are those of the templates. A scenario is its name; a metric follows it where it isn't the first.
func (f File) functions() template.FuncMap {
	return template.FuncMap{
		// Medians: Waybill's, the limit's, the limit's on new tables.
		"median": func(scenario string, metric ...string) (string, error) { return f.of(scenario, metric, Pair.waybill) },
		"limit":  func(scenario string, metric ...string) (string, error) { return f.of(scenario, metric, Pair.limit) },
		"fresh":  func(scenario string, metric ...string) (string, error) { return f.of(scenario, metric, Pair.fresh) },
		// spread has least, median and most.
		"spread": func(scenario string, metric ...string) (string, error) { return f.of(scenario, metric, Pair.spread) },
		"limitSpread": func(scenario string, metric ...string) (string, error) {
			return f.of(scenario, metric, Pair.limitSpread)
		},
		"ratio":    func(scenario string, metric ...string) (string, error) { return f.of(scenario, metric, Pair.ratio) },
		"peer":     f.peer,
		"times":    f.times,
		"row":      f.row,
		"spreads":  f.spreads,
		"measured": f.measured,
		"machine":  f.machine,
	}
}

func (p Pair) waybill() string     { return number(p.Waybill.Median) }
func (p Pair) limit() string       { return medianOf(p.Limit) }
func (p Pair) fresh() string       { return medianOf(p.LimitNew) }
func (p Pair) spread() string      { return spreadOf(&p.Waybill) }
func (p Pair) limitSpread() string { return spreadOf(p.Limit) }

func (p Pair) ratio() string {
	if p.Limit == nil {
		return ""
	}
	return fmt.Sprintf("%.2f", p.Ratio)
}

func medianOf(s *Spread) string {
	if s == nil {
		return ""
	}
	return number(s.Median)
}

// spreadOf is one number where the runs gave one.
func spreadOf(s *Spread) string {
	switch {
	case s == nil:
		return ""
	case s.Min == s.Max:
		return "**" + number(s.Median) + "**"
	}
	return number(s.Min) + " / **" + number(s.Median) + "** / " + number(s.Max)
}

func (f File) record(scenario string) (Record, error) {
	r, ok := f.Records[scenario]
	if !ok {
		return r, fmt.Errorf("%s has no %q: measure it with `cd bench && go run . record --scenario %s`", Results, scenario, scenario)
	}
	return r, nil
}

// pair is that of the metric, or of the scenario's first.
func (f File) pair(scenario string, metric []string) (Pair, error) {
	r, err := f.record(scenario)
	if err != nil {
		return Pair{}, err
	}
	if len(metric) == 0 {
		return Pair{Waybill: r.Waybill, Limit: r.Limit, Ratio: r.Ratios["limit"], LimitNew: r.LimitNew}, nil
	}
	p, ok := r.Metrics[metric[0]]
	if !ok {
		return p, fmt.Errorf("%s of %s has no metric %q; it has %q", scenario, Results, metric[0], slices.Sorted(maps.Keys(r.Metrics)))
	}
	return p, nil
}

func (f File) of(scenario string, metric []string, text func(Pair) string) (string, error) {
	p, err := f.pair(scenario, metric)
	return text(p), err
}

func (f File) peer(scenario, name string) (string, error) {
	r, err := f.record(scenario)
	if err != nil {
		return "", err
	}
	p, ok := r.Peers[name]
	if !ok {
		return "", fmt.Errorf("%s of %s has no peer %q", scenario, Results, name)
	}
	return number(p.Median), nil
}

// times is how many times as fast as a peer Waybill was.
func (f File) times(scenario, name string) (string, error) {
	r, err := f.record(scenario)
	if err != nil {
		return "", err
	}
	p, ok := r.Peers[name]
	if !ok || p.Median == 0 {
		return "", fmt.Errorf("%s of %s has no peer %q", scenario, Results, name)
	}
	return fmt.Sprintf("%.0f", r.Waybill.Median/p.Median), nil
}

// row is one of a table: label, Waybill, limit, ratio, limit on new tables.
func (f File) row(label, scenario string, metric ...string) (string, error) {
	p, err := f.pair(scenario, metric)
	return cells(label, p.waybill(), p.limit(), p.ratio(), p.fresh()), err
}

// spreads is one of a table with all runs: label, Waybill, limit, ratio.
func (f File) spreads(label, scenario string, metric ...string) (string, error) {
	p, err := f.pair(scenario, metric)
	ratio := p.ratio()
	if ratio != "" {
		ratio = "**" + ratio + "**"
	}
	return cells(label, p.spread(), p.limitSpread(), ratio), err
}

func cells(all ...string) string {
	var row strings.Builder
	for _, c := range all {
		row.WriteString("| ")
		if c != "" {
			row.WriteString(c + " ")
		}
	}
	return row.String() + "|"
}

// measured says of which day, commit and number of runs these scenarios are.
func (f File) measured(scenarios ...string) (string, error) {
	of := map[string][]string{}
	for _, s := range scenarios {
		r, err := f.record(s)
		if err != nil {
			return "", err
		}
		runs := fmt.Sprintf("%d runs", r.Runs)
		if r.Runs == 1 {
			runs = "one run"
		}
		at := fmt.Sprintf("%s, commit %s, %s", r.Date, r.Commit, runs)
		of[at] = append(of[at], "`"+s+"`")
	}
	var texts []string
	for _, at := range slices.Sorted(maps.Keys(of)) {
		if text := at; len(of) == 1 {
			texts = append(texts, text)
		} else {
			texts = append(texts, strings.Join(of[at], ", ")+": "+text)
		}
	}
	return strings.Join(texts, "; "), nil
}

func (f File) machine() string {
	m := f.Machine
	return fmt.Sprintf("%d cores of an %s with %d GiB (PostgreSQL %s, %s)", m.Cores, m.Processor, m.MemoryGiB, m.Postgres, m.Go)
}

// number has two decimals below 100 unless it is whole, and commas above 1,000.
func number(f float64) string {
	if f < 100 && f != math.Trunc(f) {
		return fmt.Sprintf("%.2f", f)
	}
	text := fmt.Sprintf("%.0f", f)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
