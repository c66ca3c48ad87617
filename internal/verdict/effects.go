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
}

// JudgeEffects finds events of accounts that took effect twice, not in turn, or not at all. moves
// is how many events each account has seen.
func JudgeEffects(moves map[string]int64, effects []Effect) (violations []string) {
	done, last := map[string]map[int64]bool{}, map[string]int64{}
	for _, e := range effects {
		if done[e.Key] == nil {
			done[e.Key] = map[int64]bool{}
		}
		switch {
		case done[e.Key][e.Number]:
			violations = append(violations, fmt.Sprintf("doubled: event %d of %s took effect again", e.Number, e.Key))
			continue
		case e.Number != last[e.Key]+1:
			violations = append(violations, fmt.Sprintf("disorder: event %d of %s took effect after %d", e.Number, e.Key, last[e.Key]))
		}
		done[e.Key][e.Number] = true
		last[e.Key] = e.Number
	}
	for _, key := range slices.Sorted(maps.Keys(moves)) {
		if n := int64(len(done[key])); n != moves[key] {
			violations = append(violations, fmt.Sprintf("no effect: of %d events of %s %d took effect", moves[key], key, n))
		}
	}
	return violations
}
