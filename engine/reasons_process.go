package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/waybill-go/waybill/internal/processdb"
)

// idleProcesses is that processes of a database run which nothing will end; nil: none.
func (s sight) idleProcesses(provider string) *reason {
	total, names := tally(s.idle, provider)
	if total == 0 {
		return nil
	}
	have := "have"
	if total == 1 {
		have = "has"
	}
	return &reason{
		Code: "processes_idle", State: degraded, Provider: provider,
		what:   fmt.Sprintf("%d of its processes (%s) %s heard nothing for 30 days or longer, and have no timer", total, strings.Join(names, ", "), have),
		remedy: "`waybill processes list --idle` shows which. Give the process a timer for messages that may never come; `waybill processes end --idle` ends these.",
	}
}

// unheardProcesses is that processes of a database run which no build has any more; nil:
// none. Nobody else logs it: what comes for them is no message of any subscription.
func (s sight) unheardProcesses(provider string) *reason {
	total, names := tally(s.unheard, provider)
	if total == 0 {
		return nil
	}
	run := "run"
	if total == 1 {
		run = "runs"
	}
	return &reason{
		Code: "processes_unheard", State: degraded, Provider: provider, quiet: true,
		what:   fmt.Sprintf("%d of its processes (%s) %s, and neither this build nor a program that runs has that process: they hear nothing, and their timers have no effect", total, strings.Join(names, ", "), run),
		remedy: processdb.UnheardRemedy(names[0]) + ".",
	}
}

// tally counts processes of a database, of which there are some for each name.
func tally(counts map[lane]int64, provider string) (total int64, names []string) {
	for at, n := range counts {
		if at.provider == provider && n > 0 {
			names = append(names, at.name)
			total += n
		}
	}
	slices.Sort(names)
	return total, names
}
