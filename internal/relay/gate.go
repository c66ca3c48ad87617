package relay

import "sync"

// Gate is what the relays of a process share: the bytes of bodies that it may have in
// hand, and the quarantine, in which a row that may end the process is called for with
// nothing else in flight. It is safe for concurrent use.
type Gate struct {
	*quarantine

	bytes *budget

	waiting sync.Mutex
	lanes   map[*wake]bool // that were refused, and want to hear when to try again
}

// NewGate returns an open gate.
func NewGate() *Gate {
	return &Gate{quarantine: newQuarantine(), bytes: newBudget(processBytes), lanes: map[*wake]bool{}}
}

// refused has a lane woken by the next change. It has to try once more after this: the
// change may have come before.
func (g *Gate) refused(w *wake) {
	g.waiting.Lock()
	defer g.waiting.Unlock()
	g.lanes[w] = true
}

// changed wakes the lanes that were refused.
func (g *Gate) changed() {
	g.waiting.Lock()
	defer g.waiting.Unlock()
	for w := range g.lanes {
		w.ring()
		delete(g.lanes, w)
	}
}

// returned says that a call has returned, of whose bodies nothing is needed any more.
func (g *Gate) returned(bytes int, leave func()) {
	leave()
	g.bytes.release(bytes)
	g.changed()
}
