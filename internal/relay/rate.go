package relay

import (
	"sync"
	"sync/atomic"
	"time"
)

// rate counts, and knows how many there were in the last ten seconds.
type rate struct {
	total atomic.Int64
	mu    sync.Mutex
	slots [10]int64
	at    int64 // the second of the newest slot
}

func (r *rate) add(n int) {
	r.total.Add(int64(n))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.advance()
	r.slots[r.at%int64(len(r.slots))] += int64(n)
}

func (r *rate) perSecond() float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.advance()
	var sum int64
	for _, n := range r.slots {
		sum += n
	}
	return float64(sum) / float64(len(r.slots))
}

func (r *rate) advance() {
	now := time.Now().Unix()
	for steps := 0; r.at < now && steps < len(r.slots); steps++ {
		r.at++
		r.slots[r.at%int64(len(r.slots))] = 0
	}
	r.at = now
}
