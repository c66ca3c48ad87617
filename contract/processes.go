package contract

import (
	"fmt"
	"maps"
	"slices"
)

// processes finds what is kept for processes that run and that no build knows any more. That
// a process itself is gone, its states say.
func (c *comparison) processes() {
	for _, name := range slices.Sorted(maps.Keys(c.old.Processes)) {
		was := c.old.Processes[name]
		is, ok := c.new.Processes[name]
		if !ok {
			continue
		}
		if a, b := by(was.CorrelatedBy), by(is.CorrelatedBy); a != b {
			c.add(name, "", fmt.Sprintf("is correlated by %s and was by %s", b, a), "history", "leave it, as messages don't find a process that was begun by the other one; if they do, or none runs, correct it in contract.json")
		}
		for _, timer := range without(was.Timers, is.Timers) {
			c.add(name, "", fmt.Sprintf("has no timer %q any more", timer), "history", fmt.Sprintf("bring domain.OnTimer(%q, …) back: timers wait under their name; once none is left, take it out of contract.json", timer))
		}
		for _, command := range without(was.Refusals, is.Refusals) {
			c.add(name, "", fmt.Sprintf("doesn't hear any more that %s is refused", command), "history", "let it hear that: commands that it has sent may wait; once none is left, take it out of contract.json")
		}
	}
}

// by is what correlates, for people.
func by(field string) string {
	if field == "" {
		return "what each event says"
	}
	return fmt.Sprintf("field %q", field)
}

// without are those of all that aren't among some.
func without(all, some []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(some, s) })
}
