package sqlite

import (
	"context"
	"slices"
	"sync"
)

// gate lets one through at a time: the urgent first, and else in the order in
// which they came. database/sql, which would do for one at a time, picks the
// next one of those who wait at random.
type gate struct {
	mu              sync.Mutex
	taken           bool
	urgent, waiting []chan struct{}
}

// enter waits for its turn. Whoever has entered has to leave.
func (g *gate) enter(ctx context.Context, urgent bool) error {
	g.mu.Lock()
	if !g.taken {
		g.taken = true
		g.mu.Unlock()
		return nil
	}
	queue := &g.waiting
	if urgent {
		queue = &g.urgent
	}
	turn := make(chan struct{})
	*queue = append(*queue, turn)
	g.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	i := slices.Index(*queue, turn)
	if i >= 0 {
		*queue = slices.Delete(*queue, i, i+1)
	}
	g.mu.Unlock()
	if i < 0 { // its turn came at the same time
		g.leave()
	}
	return context.Cause(ctx)
}

// busy says whether to enter would be to wait.
func (g *gate) busy() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.taken
}

// tryEnter enters if nobody is there.
func (g *gate) tryEnter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.taken {
		return false
	}
	g.taken = true
	return true
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.handOn()
}

// handOn lets the next one in. The caller has the lock.
func (g *gate) handOn() {
	for _, queue := range []*[]chan struct{}{&g.urgent, &g.waiting} {
		if len(*queue) > 0 {
			close((*queue)[0])
			*queue = slices.Delete(*queue, 0, 1)
			return
		}
	}
	g.taken = false
}
