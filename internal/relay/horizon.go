package relay

import (
	"slices"
	"sync"
	"time"
)

const horizonEvery = time.Second

// horizon is a seq up to which nothing can appear any more. The last seq
// that was drawn is noted, then the transactions that write to the outbox; when
// all of them have ended it is the noted one: who begins later draws a higher
// seq. It is of a process and schema, and safe for concurrent use.
type horizon struct {
	mu      sync.Mutex
	up      int64
	noted   int64
	writers []string // of these some have not ended
	asked   time.Time
}

// at is what looks may pass.
func (h *horizon) at() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.up
}

// asks says whether to ask: at most once a second, and only if last, the highest
// seq that somebody has seen, is above the horizon.
func (h *horizon) asks(now time.Time, last int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if last <= h.up || now.Sub(h.asked) < horizonEvery {
		return false
	}
	h.asked = now
	return true
}

// sampled takes in an answer. Answers come in the order of their questions.
func (h *horizon) sampled(s HorizonSample) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.noted != 0 {
		h.writers = slices.DeleteFunc(h.writers, func(w string) bool { return !slices.Contains(s.Writers, w) })
		h.rise()
	}
	if h.noted == 0 && s.Last > h.up {
		h.noted, h.writers = s.Last, slices.Clone(s.Writers)
		h.rise()
	}
}

func (h *horizon) rise() {
	if len(h.writers) == 0 {
		h.up, h.noted = h.noted, 0
	}
}

// heldUp are the transactions that it waits for.
func (h *horizon) heldUp() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.writers)
}
