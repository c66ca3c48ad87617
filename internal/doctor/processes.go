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
	return "every process that runs has a timer, or has heard something within 30 days", nil
}

func heardNothing(n int64) string {
	if n == 1 {
		return "1 process has heard nothing"
	}
	return fmt.Sprintf("%d processes have heard nothing", n)
}
