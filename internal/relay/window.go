package relay

import "time"

const (
	windowLeast = 128
	windowFirst = 512
	windowEvery = 250 * time.Millisecond
	// windowRest is after how many epochs another size is tried.
	windowRest = 20
)

// window bounds the rows that a lane has in hand, so that a kill makes hundreds
// come again, not thousands: it is about as small as it can be without making the
// lane slower. It doubles as long as the rate follows; then it tries half and
// double in turns, now and then. It is not safe for concurrent use.
type window struct {
	most   int
	size   int
	before int     // the size to go back to while another is tried; 0: none is
	best   float64 // rows a second with that one; 0: not known
	up     bool    // what was tried last
	rested int     // epochs without trying

	since   time.Time
	rows    int
	limited bool
}

func newWindow(most int) *window {
	most = max(most, windowLeast)
	return &window{most: most, size: min(windowFirst, most), up: true}
}

// room is how many rows more may be taken in hand.
func (w *window) room(inHand int) int { return max(0, w.size-inHand) }

// claim is how many rows one claim may have: half, so that a call that takes long
// leaves room for the others.
func (w *window) claim() int { return w.size / 2 }

// full says that there was more to do than the window let.
func (w *window) full() { w.limited = true }

// done counts rows that were settled. An epoch in which the window didn't matter
// says nothing about it.
func (w *window) done(now time.Time, rows int) {
	if w.since.IsZero() {
		w.since = now
	}
	w.rows += rows
	took := now.Sub(w.since)
	if took < windowEvery {
		return
	}
	if w.limited {
		w.decide(float64(w.rows) / took.Seconds())
	} else {
		w.best, w.before = 0, 0
	}
	w.rows, w.since, w.limited = 0, now, false
}

func (w *window) decide(rate float64) {
	switch {
	case w.best == 0, w.before != 0 && w.size > w.before && rate >= 1.1*w.best:
		w.best = rate
		w.try(2 * w.size)
	case w.before != 0 && w.size < w.before && rate >= 0.9*w.best:
		w.try(w.size / 2)
	case w.before != 0:
		w.size, w.before, w.rested = w.before, 0, 0
	default:
		w.best += (rate - w.best) / 8 // what is around changes
		if w.rested++; w.rested > windowRest {
			w.up = !w.up
			size := w.size / 2
			if w.up {
				size = 2 * w.size
			}
			w.try(size)
		}
	}
}

func (w *window) try(size int) {
	size = max(windowLeast, min(size, w.most))
	if w.before = w.size; size == w.size {
		w.before = 0
	}
	w.size, w.rested = size, 0
}
