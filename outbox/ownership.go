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
	// leaving: it is above the worker's share. Nothing more is claimed from it, and
	// once nothing of it is out it is given back.
	leaving bool
}

// margin is the part of a lease that a worker doesn't use.
func margin(lease time.Duration) time.Duration { return min(lease/10, 5*time.Second) }

// patience is how long a claim or a takeover waits for a row that others have
// locked. It has locked partitions, whose renewal must not wait for long.
func patience(lease time.Duration) time.Duration { return min(lease/6, time.Second) }

// silence is how long a process may say nothing in the middle of a claim or a takeover
// until PostgreSQL ends its session: one that stands still, as a frozen machine does,
// would keep the partitions that it has locked from others for longer than its lease.
func silence(lease time.Duration) time.Duration {
	return min(max(2*lease/3, time.Second), storeTimeout)
}

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
		if now.Before(h.until) && !h.leaving {
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
			o.leases[l.Partition] = held{fence: l.Fence, until: until, leaving: h.leaving}
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

// leave takes out what is above the share and has nothing out, for the worker to
// give back in the database. Of the rest as much as need be is leaving.
func (o *ownership) leave(worker string, out func(partition int) bool) []Lease {
	o.mu.Lock()
	defer o.mu.Unlock()
	var gone []Lease
	for p, h := range o.leases {
		if len(gone) < o.surplus && !out(p) {
			gone = append(gone, Lease{Worker: worker, Partition: p, Fence: h.fence})
			delete(o.leases, p)
		}
	}
	o.surplus -= len(gone)
	left := o.surplus
	for _, before := range []bool{true, false} { // what is leaving goes on leaving
		for p, h := range o.leases {
			if h.leaving == before {
				h.leaving = left > 0
				o.leases[p] = h
				left--
			}
		}
	}
	return gone
}

// clear takes everything out, for a worker that has nothing out.
func (o *ownership) clear(worker string) []Lease {
	o.mu.Lock()
	defer o.mu.Unlock()
	var gone []Lease
	for p, h := range o.leases {
		gone = append(gone, Lease{Worker: worker, Partition: p, Fence: h.fence})
	}
	clear(o.leases)
	o.surplus = 0
	return gone
}

// holds says whether a partition is the worker's.
func (o *ownership) holds(partition int) bool {
	_, ok := o.deadline(partition)
	return ok
}
