package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/processdb"
)

// processes looks for running ones that nothing will end: they have heard nothing for
// long, and have no timer.
func (e *exam) processes(ctx context.Context, _ bun.IDB) (string, error) {
	all, err := processdb.New(e.provider).Stats(ctx)
	if err != nil {
		return "", err
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if n := all[name].Idle; n > 0 {
			e.add(Warning, "process "+name, fmt.Sprintf("%s for 30 days or longer, with no timer that would end them", heardNothing(n)),
				"waybill processes list --idle --process "+name+" says which; give the process a timer for what may never come, and end these: waybill processes end --idle --process "+name+" --dry-run")
		}
	}
	if err := e.unheardProcesses(ctx, all); err != nil {
		return "", err
	}
	return "every process that runs is heard for, and has a timer or has heard something within 30 days", nil
}

// unheardProcesses looks for running ones that no program has: it was renamed, removed, or
// all that have it are stopped.
func (e *exam) unheardProcesses(ctx context.Context, all map[string]processdb.Stats) error {
	if !e.current["subscription"] {
		return nil
	}
	names, err := processdb.New(e.provider).Unheard(ctx)
	for _, name := range names {
		what := "1 process runs"
		if n := all[name].Running; n > 1 {
			what = fmt.Sprintf("%d processes run", n)
		}
		e.add(Warning, "process "+name, what+", and no program that has this process: nothing is heard for it, and timers have no effect",
			e.unlessMoved("start an engine whose build has it. "+processdb.UnheardRemedy(name)))
	}
	return err
}

func heardNothing(n int64) string {
	if n == 1 {
		return "1 process has heard nothing"
	}
	return fmt.Sprintf("%d processes have heard nothing", n)
}
