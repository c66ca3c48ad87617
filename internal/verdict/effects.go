package verdict

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Effect is what a consumer did for an event, in the order in which it was done.
type Effect struct {
	At     time.Time
	Key    string
	Number int64 // of the event in its account
	// Forgotten says that it was committed, and that the database has lost it since, as it may: with
	// it went what a consumer knows duplicates by, so the event may take effect once more, at any
	// time after this, or never.
	Forgotten bool
}

// account is what took effect of one.
type account struct {
	done, forgotten map[int64]bool
	last            int64 // that took effect for the first time
}

// JudgeEffects finds events of accounts that took effect twice, not in turn, or not at all. moves
// is how many events each account has seen. An event that comes again since its effect was
// forgotten is out of turn only with itself: those for which it is the first time have to come
// in turn around it.
func JudgeEffects(moves map[string]int64, effects []Effect) (violations []string) {
	of := map[string]*account{}
	for _, e := range effects {
		a := of[e.Key]
		if a == nil {
			a = &account{done: map[int64]bool{}, forgotten: map[int64]bool{}}
			of[e.Key] = a
		}
		switch {
		case a.done[e.Number]:
			violations = append(violations, fmt.Sprintf("doubled: event %d of %s took effect again", e.Number, e.Key))
			continue
		case a.forgotten[e.Number]: // it comes again
		case e.Number != a.last+1:
			violations = append(violations, fmt.Sprintf("disorder: event %d of %s took effect after %d", e.Number, e.Key, a.last))
			a.last = e.Number
		default:
			a.last = e.Number
		}
		if e.Forgotten {
			a.forgotten[e.Number] = true
		} else {
			a.done[e.Number] = true
		}
	}
	for _, key := range slices.Sorted(maps.Keys(moves)) {
		n := int64(0)
		if a := of[key]; a != nil {
			maps.Copy(a.forgotten, a.done)
			n = int64(len(a.forgotten))
		}
		if n != moves[key] {
			violations = append(violations, fmt.Sprintf("no effect: of %d events of %s %d took effect", moves[key], key, n))
		}
	}
	return violations
}
