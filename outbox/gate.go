package outbox

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

// Gate lets the calls of a process go side by side, or one alone. A row whose
// publishing ended its process twice is called for alone, with nothing else in
// flight: if it does so again, nothing else is lost with it. All processors of a
// process share one. It is safe for concurrent use.
type Gate struct {
	calls *semaphore.Weighted
	rest  atomic.Pointer[time.Time] // not alone again before
}

// NewGate returns an open gate.
func NewGate() *Gate { return &Gate{calls: semaphore.NewWeighted(math.MaxInt64)} }

// enter waits for a call that is alone, if there is one.
func (g *Gate) enter(ctx context.Context) (leave func(), err error) {
	return func() { g.calls.Release(1) }, g.calls.Acquire(ctx, 1)
}

// resting is how long to wait before being alone, so that the others have most
// of the time.
func (g *Gate) resting() time.Duration {
	if rest := g.rest.Load(); rest != nil {
		return max(time.Until(*rest), 0)
	}
	return 0
}

// enterAlone waits for all calls to end, while new ones wait: the semaphore
// serves in the order of arrival.
func (g *Gate) enterAlone(ctx context.Context) (leave func(), err error) {
	if err := g.calls.Acquire(ctx, math.MaxInt64); err != nil {
		return nil, err
	}
	begin := time.Now()
	return func() {
		rest := time.Now().Add(3 * time.Since(begin))
		g.rest.Store(&rest)
		g.calls.Release(math.MaxInt64)
	}, nil
}
