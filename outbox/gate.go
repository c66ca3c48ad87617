package outbox

import (
	"context"
	"math"

	"golang.org/x/sync/semaphore"
)

// Gate lets the calls of a process go side by side, or one alone. A row whose
// publishing ended its process twice is called for alone, with nothing else in
// flight: if it does so again, nothing else is lost with it. All processors of a
// process share one. It is safe for concurrent use.
type Gate struct{ calls *semaphore.Weighted }

// NewGate returns an open gate.
func NewGate() *Gate { return &Gate{calls: semaphore.NewWeighted(math.MaxInt64)} }

// enter waits for a call that is alone, if there is one; or, to be alone, for
// all calls to end, while new ones wait: the semaphore serves in the order of
// arrival.
func (g *Gate) enter(ctx context.Context, alone bool) (leave func(), err error) {
	n := int64(1)
	if alone {
		n = math.MaxInt64
	}
	return func() { g.calls.Release(n) }, g.calls.Acquire(ctx, n)
}
