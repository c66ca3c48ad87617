package relay

import (
	"slices"
	"sync"
)

// Gate is what the relays of a process share: the bytes of bodies that it may have in
// hand, and the quarantine, in which a row that may end the process is called for with
// nothing else in flight. It is safe for concurrent use.
type Gate struct {
	*quarantine

	bytes *budget

	waiting sync.Mutex
	lanes   []*wake // that were refused, and want to hear when to try again: the first of them first
}

// NewGate returns an open gate.
func NewGate() *Gate {
	return &Gate{quarantine: newQuarantine(), bytes: newBudget(processBytes)}
}

// refused has a lane woken by the next change. It has to try once more after this: the
// change may have come before.
func (g *Gate) refused(w *wake) {
	g.waiting.Lock()
	defer g.waiting.Unlock()
	if !slices.Contains(g.lanes, w) {
		g.lanes = append(g.lanes, w)
	}
}

// changed wakes the lanes that were refused.
func (g *Gate) changed() {
	g.waiting.Lock()
	defer g.waiting.Unlock()
	for _, w := range g.lanes {
		w.ring()
	}
	clear(g.lanes) // of relays that have stopped nothing is kept
	g.lanes = g.lanes[:0]
}

// returned says that a call has returned, of whose bodies nothing is needed any more.
func (g *Gate) returned(bytes int, leave func()) {
	leave()
	g.bytes.release(bytes)
	g.changed()
}
