package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/waybill-go/waybill/internal/timerdb"
	"github.com/waybill-go/waybill/outbox"
)

// timersChange is what move, fire and stop have in common.
type timersChange struct {
	timersFilter
	deed
}

type moveTimersCmd struct {
	timersChange
	To coming `required:"" placeholder:"TIME" help:"The new due time: 2026-01-02T15:04:05Z, or 2h for two hours from now."`
}

type fireTimersCmd struct{ timersChange }

type stopTimersCmd struct{ timersChange }

// coming is a time of the command line, or how long it is until then, by the database's clock:
// timers ring by that one, and an operator's machine may have another.
type coming struct {
	time.Time
	in *time.Duration
}

// from is the time that is meant when it is now.
func (m coming) from(now time.Time) time.Time {
	if m.in != nil {
		return now.Add(*m.in)
	}
	return m.Time
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *coming) UnmarshalText(text []byte) error {
	if in, err := time.ParseDuration(string(text)); err == nil {
		m.in = &in
		return nil
	}
	at, err := time.Parse(time.RFC3339, string(text))
	if err != nil {
		return fmt.Errorf("%q is neither a time as in 2026-01-02T15:04:05Z nor how long until then, as in 90m", text)
	}
	if at.IsZero() { // which outbox.TimerChange takes for a stop
		return fmt.Errorf("%q is no time: `waybill timers fire` has timers due at once, `stop` forgets them", text)
	}
	m.Time = at
	return nil
}

func (m moveTimersCmd) Run(ctx context.Context, c *cli, stdout out, stderr news) error {
	return m.run(ctx, c, stdout, stderr, "move", func(now time.Time) (outbox.TimerChange, string) {
		at := m.To.from(now)
		return outbox.TimerChange{At: at}, "moved to " + when(at)
	})
}

func (f fireTimersCmd) Run(ctx context.Context, c *cli, stdout out, stderr news) error {
	return f.run(ctx, c, stdout, stderr, "fire", func(time.Time) (outbox.TimerChange, string) { return outbox.TimerChange{Now: true}, "due now" })
}

func (s stopTimersCmd) Run(ctx context.Context, c *cli, stdout out, stderr news) error {
	return s.run(ctx, c, stdout, stderr, "stop", func(time.Time) (outbox.TimerChange, string) { return outbox.TimerChange{}, "stopped" })
}

// run makes the change that is to be made when a database's clock shows that time.
func (a timersChange) run(ctx context.Context, c *cli, stdout out, stderr news, verb string, to func(now time.Time) (outbox.TimerChange, string)) error {
	if a.filter().Empty() {
		return &usageError{fmt.Errorf("%s what? Choose timers by --id, --owner, --name, --type or another filter; --dry-run shows what it would do", verb)}
	}
	shown := map[string]time.Time{} // What was shown had been set before.
	return act[outbox.TimersChanged]{deed: a.deed, do: func(dryRun bool, all map[string]outbox.TimersChanged) error {
		return c.eachTimers(ctx, a.Provider, func(provider string, s *timerdb.Store) (err error) {
			if plan, planned := all[provider]; planned && plan.Changed == 0 {
				return nil
			}
			if dryRun {
				if shown[provider], err = s.Time(ctx); err != nil {
					return err
				}
			}
			change, did := to(shown[provider])
			change.Actor, change.DryRun, change.Before = a.actor(), dryRun, shown[provider]
			all[provider], err = s.Change(ctx, a.filter(), change)
			if done := all[provider]; done.Action != 0 && !c.JSON {
				fmt.Fprintf(stdout, "%s %s; action %d, by %s.\n", timers(done.Changed), did, done.Action, a.actor())
			}
			return err
		})
	}, tell: func(all map[string]outbox.TimersChanged) (string, error) { return a.tell(c, stdout, verb, all) }}.run(ctx, c, stdout, stderr)
}

// tell says what becomes of what was chosen, and returns the question.
func (a timersChange) tell(c *cli, stdout out, verb string, all map[string]outbox.TimersChanged) (question string, err error) {
	var changed, left int64
	for _, r := range all {
		changed, left = changed+r.Changed, left+r.Left
	}
	if changed+left == 0 && len(a.ID) > 0 {
		return "", errors.New("there is no such timer: it was handled, stopped or set again; nothing was changed")
	}
	if !c.JSON {
		if err := tellTimers(stdout, verb, all); err != nil {
			return "", err
		}
	}
	if changed == 0 {
		return "", nil
	}
	return fmt.Sprintf("%s %s?", strings.ToUpper(verb[:1])+verb[1:], timers(changed)), nil
}

func tellTimers(stdout out, verb string, all map[string]outbox.TimersChanged) error {
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	for _, provider := range slices.Sorted(maps.Keys(all)) {
		r := all[provider]
		if len(all) > 1 {
			if r.Changed+r.Left == 0 {
				continue
			}
			fmt.Fprintf(w, "Provider %s\n", provider)
		}
		fmt.Fprintf(w, "%s\t%d\ttimers\n", verb, r.Changed)
		if r.Left > 0 {
			fmt.Fprintf(w, "left\t%d\twhose messages are on their way: `waybill timers stop` stops them\n", r.Left)
		}
	}
	return w.Flush()
}

func timers(n int64) string { return number(n, "timer", "timers") }
