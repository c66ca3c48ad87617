package outbox

import (
	"sync"
	"time"
)

// ownership is what one worker holds: its leases, each with the time up to
// which this process may rely on it. It is safe for concurrent use.
type ownership struct {
	mu      sync.Mutex
	leases  map[int]held
	surplus int
}

type held struct {
	fence int64
	// until is the start of the request that took or renewed the lease, plus its
	// length, less a margin, on this process's monotonic clock. The database ends
	// the lease later than that. It saves duplicates; that nothing else goes
	// wrong rests on fence and claim alone.
	until time.Time
}

// margin is the part of a lease that a worker doesn't use.
func margin(lease time.Duration) time.Duration { return min(lease/10, 5*time.Second) }

func (o *ownership) add(leases []Lease, until time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, l := range leases {
		// Fences grow: an answer that arrives late doesn't replace a newer one.
		if o.leases[l.Partition].fence < l.Fence {
			o.leases[l.Partition] = held{fence: l.Fence, until: until}
		}
	}
}

// all are the leases, for a renewal.
func (o *ownership) all(worker string) []Lease {
	o.mu.Lock()
	defer o.mu.Unlock()
	leases := make([]Lease, 0, len(o.leases))
	for p, h := range o.leases {
		leases = append(leases, Lease{Worker: worker, Partition: p, Fence: h.fence})
	}
	return leases
}

// live are the leases that may be relied on now.
func (o *ownership) live(worker string) []Lease {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	leases := make([]Lease, 0, len(o.leases))
	for p, h := range o.leases {
		if now.Before(h.until) {
			leases = append(leases, Lease{Worker: worker, Partition: p, Fence: h.fence})
		}
	}
	return leases
}

// deadline is until when partition may be relied on; ok is false if it isn't
// held any more.
func (o *ownership) deadline(partition int) (until time.Time, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	h, ok := o.leases[partition]
	return h.until, ok
}

// renewed notes the answer to a renewal of asked: what was kept is held for
// longer, the rest of it is not held any more. What was taken or fenced anew
// while the renewal was out is left alone.
func (o *ownership) renewed(asked, kept []Lease, until time.Time) (lost int) {
	still := make(map[Lease]bool, len(kept))
	for _, l := range kept {
		still[l] = true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, l := range asked {
		h, ok := o.leases[l.Partition]
		switch {
		case !ok || h.fence != l.Fence:
		case still[l]:
			o.leases[l.Partition] = held{fence: l.Fence, until: until}
		default:
			delete(o.leases, l.Partition)
			lost++
		}
	}
	return lost
}

func (o *ownership) len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.leases)
}

// setSurplus says how many partitions are above the worker's share.
func (o *ownership) setSurplus(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.surplus = n
}

// releaseSurplus takes out what is above the share, releaseAll takes out
// everything. The caller gives them back in the database; it has nothing
// unsettled.
func (o *ownership) releaseSurplus(worker string) []Lease {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.take(worker, o.surplus)
}

func (o *ownership) releaseAll(worker string) []Lease {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.take(worker, len(o.leases))
}

func (o *ownership) take(worker string, n int) []Lease {
	o.surplus = 0
	var taken []Lease
	for p, h := range o.leases {
		if len(taken) == n {
			break
		}
		taken = append(taken, Lease{Worker: worker, Partition: p, Fence: h.fence})
		delete(o.leases, p)
	}
	return taken
}
