package relay

import (
	"sync"
	"time"
)

const (
	processBytes = 64 << 20
	claimBytes   = 8 << 20
)

// budget bounds the bytes of bodies that a process has in hand. It is safe for
// concurrent use.
type budget struct {
	mu    sync.Mutex
	left  int
	freed chan struct{}
}

func newBudget(bytes int) *budget { return &budget{left: bytes, freed: make(chan struct{}, 1)} }

// reserve takes what a claim may have, 0 if there is nothing left. What it
// doesn't need goes back by release at once, the rest after its call.
func (b *budget) reserve() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := max(0, min(claimBytes, b.left))
	b.left -= n
	return n
}

// adjust makes what was reserved what is used: a single row may be more.
func (b *budget) adjust(reserved, used int) { b.release(reserved - used) }

// release gives bytes back.
func (b *budget) release(n int) {
	b.mu.Lock()
	b.left += n
	free := b.left > 0
	b.mu.Unlock()
	if free && n > 0 {
		select {
		case b.freed <- struct{}{}:
		default:
		}
	}
}

const (
	windowLeast = 128
	windowFirst = 512
	windowEvery = 250 * time.Millisecond
	// windowRest is how many epochs pass until a smaller window is tried again.
	windowRest = 20
)

// window bounds the rows that a lane has in hand, so that a kill makes hundreds
// come again, not thousands: it is as small as it can be without making the lane
// slower. Doubling goes on as long as the rate follows; now and then it tries
// with half. It is not safe for concurrent use.
type window struct {
	most    int
	size    int
	best    float64 // rows a second, of this backlog
	before  int     // the size to go back to, while another is tried
	since   time.Time
	rows    int
	limited bool
	rested  int
}

func newWindow(most int) *window {
	return &window{most: max(most, windowLeast), size: min(windowFirst, max(most, windowLeast))}
}

// room is how many rows more may be taken in hand.
func (w *window) room(inHand int) int { return max(0, w.size-inHand) }

// full says that there was more to do than the window let.
func (w *window) full() { w.limited = true }

// done counts rows that were settled, and now and then decides.
func (w *window) done(now time.Time, rows int) {
	if w.since.IsZero() {
		w.since = now
	}
	w.rows += rows
	took := now.Sub(w.since)
	if took < windowEvery {
		return
	}
	rate := float64(w.rows) / took.Seconds()
	w.rows, w.since = 0, now
	if limited := w.limited; !limited {
		w.best, w.before = 0, 0 // there is no backlog, so nothing to compare with
		return
	}
	w.limited = false
	w.decide(rate)
}

func (w *window) decide(rate float64) {
	grew, shrank := w.before != 0 && w.size > w.before, w.size < w.before
	was := w.best
	w.best = max(w.best, rate)
	switch {
	case grew && rate < 1.1*was, shrank && rate < 0.9*was: // not worth it; it costs
		w.size, w.before, w.rested = w.before, 0, 0
	case w.before == 0 && was != 0 && w.rested < windowRest:
		w.rested++
	case w.before == 0 && was != 0 && w.rested == windowRest && w.size > windowLeast, shrank && w.size > windowLeast:
		w.best = max(was*0.99, rate) // what was once is forgotten in the end
		w.try(max(w.size/2, windowLeast))
		w.rested++
	default:
		w.try(min(2*w.size, w.most))
	}
}

func (w *window) try(size int) {
	if size == w.size {
		w.before, w.rested = 0, 0
		return
	}
	w.before, w.size = w.size, size
}
