package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill/internal/processdb"
	"github.com/waybill-go/waybill/internal/timerdb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/process"
	"github.com/waybill-go/waybill/uow"
)

type endProcessesCmd struct {
	processesFilter
	Retention time.Duration `default:"720h" placeholder:"TIME" help:"How long ended processes are remembered, so that late messages for them are ignored."`
	deed
}

func (e endProcessesCmd) Run(ctx context.Context, c *cli, stdout out, stderr news) error {
	switch {
	case e.filter().Empty():
		return &usageError{errors.New("end what? Choose processes by --process, --id or another filter; --dry-run shows what it would do")}
	case e.Retention <= 0:
		return &usageError{fmt.Errorf("--retention is %v: above 0", e.Retention)}
	}
	shown := map[string]time.Time{} // What was shown had begun before.
	return act[processdb.Changed]{deed: e.deed, do: func(dryRun bool, all map[string]processdb.Changed) error {
		return c.eachProcesses(ctx, e.Provider, func(p uow.Provider, s *processdb.Store) (err error) {
			if plan, planned := all[p.Name()]; planned && plan.Changed == 0 {
				return nil
			}
			if dryRun {
				if shown[p.Name()], err = s.Time(ctx); err != nil {
					return err
				}
			}
			all[p.Name()], err = s.End(ctx, e.filter(), processdb.End{Retention: e.Retention, Actor: e.actor(), DryRun: dryRun, Before: shown[p.Name()]})
			if done := all[p.Name()]; done.Action != 0 && !c.JSON {
				fmt.Fprintf(stdout, "%s ended; action %d, by %s.\n", processes(done.Changed), done.Action, e.actor())
			}
			return err
		})
	}, tell: func(all map[string]processdb.Changed) (string, error) { return e.tell(c, stdout, all) }}.run(ctx, c, stdout, stderr)
}

// tell says what becomes of what was chosen, and returns the question.
func (e endProcessesCmd) tell(c *cli, stdout out, all map[string]processdb.Changed) (question string, err error) {
	var changed, left int64
	for _, r := range all {
		changed, left = changed+r.Changed, left+r.Left
	}
	if changed+left == 0 && len(e.ID) > 0 {
		return "", errors.New("there is no such process; nothing was changed")
	}
	if !c.JSON {
		for _, provider := range slices.Sorted(maps.Keys(all)) {
			r, of := all[provider], ""
			if len(all) > 1 {
				of = " of provider " + provider
			}
			fmt.Fprintf(stdout, "end %s%s, with their timers\n", processes(r.Changed), of)
			if r.Left > 0 {
				fmt.Fprintf(stdout, "left: %s%s that don't run\n", processes(r.Left), of)
			}
		}
	}
	if changed == 0 {
		return "", nil
	}
	return fmt.Sprintf("End %s? What they sent stays sent; nothing is compensated.", processes(changed)), nil
}

func processes(n int64) string { return number(n, "process", "processes") }

type wakeProcessCmd struct {
	Process string `arg:"" help:"Its kind, as listed: library.lending."`
	ID      string `arg:"" help:"Its id, as listed."`
	Timer   string `placeholder:"NAME" help:"Which of its timers; optional if it has only one."`
	deed
}

func (w wakeProcessCmd) Run(ctx context.Context, c *cli, stdout out, stderr news) error {
	found, err := c.findProcess(ctx, w.Process, w.ID)
	if err != nil {
		return err
	}
	var names []string
	f := outbox.TimerFilter{Owner: process.Owner(w.Process, w.ID), Status: outbox.TimerWaiting}
	for _, t := range found.Timers {
		if t.Status == outbox.TimerWaiting && (w.Timer == "" || w.Timer == t.Name) {
			names = append(names, t.Name)
			// By its id: when it has rung, the process may set another one of this name.
			f.Name, f.IDs = t.Name, []string{t.ID}
		}
	}
	switch {
	case len(names) == 0 && w.Timer != "":
		return fmt.Errorf("%s %q has no timer %q that waits; `waybill processes show %s %s` has those that it has", w.Process, w.ID, w.Timer, w.Process, quote(w.ID))
	case len(names) == 0:
		return fmt.Errorf("%s %q has no timer that waits: nothing but a message can wake it", w.Process, w.ID)
	case len(names) > 1:
		return &usageError{fmt.Errorf("which one? It has %s: give --timer", strings.Join(names, ", "))}
	}
	return act[outbox.TimersChanged]{deed: w.deed, do: func(dryRun bool, all map[string]outbox.TimersChanged) error {
		return c.eachTimers(ctx, found.Provider, func(provider string, s *timerdb.Store) (err error) {
			all[provider], err = s.Change(ctx, f, outbox.TimerChange{Now: true, Actor: w.actor(), DryRun: dryRun})
			if done := all[provider]; done.Action != 0 && !c.JSON {
				fmt.Fprintf(stdout, "Timer %s is due now; action %d, by %s.\n", printable(names[0]), done.Action, w.actor())
			}
			return err
		})
	}, tell: func(map[string]outbox.TimersChanged) (string, error) {
		if !c.JSON {
			fmt.Fprintf(stdout, "have timer %s of %s %s ring now\n", printable(names[0]), w.Process, printable(w.ID))
		}
		return "Wake it?", nil
	}}.run(ctx, c, stdout, stderr)
}
