// Package waittest is how tests wait for a condition.
package waittest

import (
	"fmt"
	"testing"
	"time"
)

const (
	// patience is no promise of the product: it ends a test that waits in vain, and must be
	// long enough for a machine that has other work. A test of a time that was promised
	// measures it itself.
	patience = 3 * time.Minute
	// What comes soon is seen soon, and what takes long isn't asked for at every turn.
	firstTick = time.Millisecond
	lastTick  = 20 * time.Millisecond
)

// Until returns once condition is true. It asks on the goroutine that runs the test, so that
// condition may end the test by an assertion. what says in the words of fmt.Sprintf what is
// waited for.
func Until(t testing.TB, condition func() bool, what ...any) {
	t.Helper()
	tick := firstTick
	for deadline := time.Now().Add(patience); !condition(); <-time.After(tick) {
		tick = min(tick*3/2, lastTick)
		if time.Now().After(deadline) {
			t.Fatalf("waited for %v in vain%s", patience, words(what))
		}
	}
}

// ToZero returns once nothing is left, and waits as long as it becomes less: how long that takes
// is the machine's.
func ToZero(t testing.TB, left func() int, what ...any) {
	t.Helper()
	for n := left(); n > 0; {
		Until(t, func() bool {
			is := left()
			less := is < n
			n = min(n, is)
			return less
		}, what...)
	}
}

func words(what []any) string {
	if len(what) == 0 {
		return ""
	}
	if format, ok := what[0].(string); ok {
		return ": " + fmt.Sprintf(format, what[1:]...)
	}
	return ": " + fmt.Sprint(what...)
}
