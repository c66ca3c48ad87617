package outbox

import (
	"math/rand/v2"
	"sync"
	"time"
)

const (
	breakerFirst = time.Second
	breakerMax   = 8 * time.Second
)

// breaker keeps a lane from calling a broker that doesn't answer. After an
// outage began it lets one call with one real row through, at growing
// intervals; when that one is answered the lane goes on. It is safe for
// concurrent use.
type breaker struct {
	mu      sync.Mutex
	wait    time.Duration // 0: closed
	until   time.Time
	probing bool
}

// enter says how a worker may go on: after a wait; or at once, with one row as
// the probe; or freely.
func (b *breaker) enter() (wait time.Duration, probe bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.wait == 0 {
		return 0, false
	}
	if d := time.Until(b.until); d > 0 {
		return d, false
	}
	if b.probing {
		return breakerFirst / 10, false // until the probe is answered
	}
	b.probing = true
	return 0, true
}

// release gives the right to probe back unused: there was no row to probe with.
func (b *breaker) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probing = false
}

// next is how long the lane will wait if the call that is out isn't answered.
func (b *breaker) next() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.following()
}

func (b *breaker) following() time.Duration {
	if b.wait == 0 {
		return breakerFirst
	}
	return min(2*b.wait, breakerMax)
}

// unanswered opens the breaker, or keeps it open for longer. began says whether
// this is the beginning of an outage. Calls that were out when it opened don't
// prolong it.
func (b *breaker) unanswered(probe bool) (began bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	began = b.wait == 0
	if began || probe {
		b.wait = b.following()
		b.until = time.Now().Add(time.Duration((0.75 + 0.5*rand.Float64()) * float64(b.wait)))
	}
	if probe {
		b.probing = false
	}
	return began
}

// answered closes it. ended says whether this is the end of an outage.
func (b *breaker) answered() (ended bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	ended = b.wait > 0
	b.wait, b.probing = 0, false
	return ended
}

// state is "closed", "open" or "half-open".
func (b *breaker) state() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.wait == 0:
		return "closed"
	case b.probing || time.Now().After(b.until):
		return "half-open"
	}
	return "open"
}
