package chaos

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/waybill-go/waybill/internal/verdict"
)

// Result is what a run comes to.
type Result struct {
	Seed       uint64         `json:"seed"`
	Duration   string         `json:"duration"`
	Faults     map[string]int `json:"faults"` // by kind
	Off        []Off          `json:"off"`
	Events     int            `json:"events"`
	Effects    int            `json:"effects"`
	Deliveries int            `json:"deliveries"`
	Duplicates map[string]int `json:"duplicates"` // by what they are explained by
	Failovers  int            `json:"failovers"`  // and other ends of PostgreSQL after which it lacked what it had confirmed
	Forgotten  map[string]int `json:"forgotten"`  // by PostgreSQL, though confirmed: by what it is
	TakenOver  int            `json:"taken_over"` // rows, from the dead
	Late       int            `json:"late"`       // rows that were written back too late, and so not at all
	Aside      int            `json:"aside"`      // messages that consumers put aside for a while, as their keys waited
	Drained    float64        `json:"drained_seconds"`
	Violations []Violation    `json:"violations"`
	History    string         `json:"history"` // a file

	counts map[string]int
}

// Violation is something that must not be, and the lines of the history that it is about.
type Violation struct {
	What  string            `json:"what"`
	Lines []json.RawMessage `json:"lines"`
}

// Failed says that there is a violation.
func (r *Result) Failed() bool { return len(r.Violations) > 0 }

// columns of the verdict: how violations begin, and what they are called.
var columns = [][2]string{
	{"lost", "lost"},
	{"ghost", "ghosts (never committed)"},
	{"changed", "changed"},
	{"disorder", "out of order"},
	{"doubled", "doubled effects"},
	{"no effect", "without an effect"},
	{"abandoned", "abandoned without reason"},
	{"parked", "parked without reason"},
	{"unfinished", "unfinished"},
	{"unexplained", "duplicates without a cause"},
	{"stolen", "taken from a running lease"},
	{"crashed", "processes that crashed"},
	{"standstill", "standstills"},
}

// shown are the violations whose lines are shown.
const shown = 10

// judge has all of it judged.
func (r *run) judge(f *found, drained time.Duration) *Result {
	r.pardon(f)
	report := f.Judge()
	var effects []verdict.Effect
	left := 0
	for _, e := range f.effects {
		effects = append(effects, e.Effect)
		if !e.Forgotten {
			left++
		}
	}
	all := slices.Concat(report.Violations, verdict.JudgeEffects(f.Moves, effects), r.crashes, f.violations)
	acked := r.answered(f)
	for _, key := range slices.Sorted(maps.Keys(acked)) {
		if acked[key] > f.Moves[key] {
			all = append(all, fmt.Sprintf("lost: a writer was told that event %d of %s is committed, and the database has %d", acked[key], key, f.Moves[key]))
		}
	}
	result := &Result{
		Seed: r.cfg.Seed, Duration: r.cfg.Duration.String(), Faults: r.faults, Events: report.Events, Effects: left, Deliveries: report.Deliveries,
		Duplicates: report.Reasons, Failovers: len(f.losses), Forgotten: f.gone, TakenOver: report.Taken, Late: report.Stale, Aside: f.aside, Drained: drained.Seconds(),
		History: filepath.Join(r.cfg.Dir, "history.jsonl"), counts: map[string]int{},
	}
	for i, what := range all {
		kind, _, _ := strings.Cut(what, ":")
		result.counts[kind]++
		v := Violation{What: what}
		if i < shown {
			for _, e := range r.history.about(what, f) {
				line, _ := json.Marshal(e) // of words, numbers and times
				v.Lines = append(v.Lines, line)
			}
		}
		result.Violations = append(result.Violations, v)
	}
	return result
}

// Print writes the table, and what is wrong.
func (r *Result) Print(to io.Writer) error {
	t := tabwriter.NewWriter(to, 0, 4, 2, ' ', 0)
	fmt.Fprintf(t, "Seed\t%d\n", r.Seed)
	fmt.Fprintf(t, "Faults\t%d in %s\n", sum(r.Faults), r.Duration)
	list(t, r.Faults)
	fmt.Fprintf(t, "Events\t%d\n", r.Events)
	fmt.Fprintf(t, "Messages in Kafka\t%d\n", r.Deliveries)
	fmt.Fprintf(t, "Duplicates, by cause\t%d\n", sum(r.Duplicates))
	list(t, r.Duplicates)
	fmt.Fprintf(t, "Effects\t%d\n", r.Effects)
	fmt.Fprintf(t, "Failovers of PostgreSQL\t%d\n", r.Failovers)
	fmt.Fprintf(t, "Forgotten by PostgreSQL\t%d\n", sum(r.Forgotten))
	list(t, r.Forgotten)
	fmt.Fprintf(t, "Rows taken over\t%d\n", r.TakenOver)
	fmt.Fprintf(t, "Rows written back too late\t%d\n", r.Late)
	fmt.Fprintf(t, "Messages put aside for a while\t%d\n", r.Aside)
	fmt.Fprintf(t, "Time to drain\t%.1f s\n", r.Drained)
	for _, c := range columns {
		fmt.Fprintf(t, "Verdict: %s\t%d\n", c[1], r.counts[c[0]])
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for i, v := range r.Violations {
		if i == shown {
			fmt.Fprintf(to, "\nand %d more\n", len(r.Violations)-shown)
			break
		}
		fmt.Fprintf(to, "\n%s\n", v.What)
		for _, line := range v.Lines {
			fmt.Fprintf(to, "    %s\n", line)
		}
	}
	if r.Failed() {
		_, err := fmt.Fprintf(to, "\nFAILED: %d violations. The whole history is in %s\n", len(r.Violations), r.History)
		return err
	}
	_, err := fmt.Fprintln(to, "\nPASSED: no violation")
	return err
}

func list(to io.Writer, by map[string]int) {
	for _, name := range slices.Sorted(maps.Keys(by)) {
		fmt.Fprintf(to, "  %s\t%d\n", name, by[name])
	}
}

func sum(by map[string]int) (n int) {
	for _, k := range by {
		n += k
	}
	return n
}
