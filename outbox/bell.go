package outbox

import (
	"slices"
	"time"
)

// poke says that rows of a partition were committed.
func (w *worker) poke(partition int) {
	w.mu.Lock()
	w.poked[partition] = true
	w.mu.Unlock()
	w.ring()
}

// perhaps says that there may be something to do in a partition.
func (w *worker) perhaps(partition int) {
	w.mu.Lock()
	if _, ok := w.poked[partition]; !ok {
		w.poked[partition] = false
	}
	w.mu.Unlock()
	w.ring()
}

// areas are its partitions and what it knows of them.
func (w *worker) areas() []Area {
	leases := w.own.live(w.id)
	areas := make([]Area, len(leases))
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, l := range leases {
		areas[i] = Area{Target: w.lane.target, Partition: l.Partition}
		// A head whose time has come hides nothing: the worker's own timer may have
		// run out while it had no lease to look with.
		if k, ok := w.known[l.Partition]; ok && k.fence == l.Fence && (k.next.IsZero() || now.Before(k.next)) {
			areas[i].After, areas[i].Changes = k.after, k.changes
		}
	}
	return areas
}

// look says that there is something to see anywhere.
func (w *worker) look() {
	w.mu.Lock()
	w.all = true
	w.mu.Unlock()
	w.ring()
}

// rung takes what the bell was rung for.
func (w *worker) rung() (partitions map[int]bool, all bool, next time.Time) {
	select {
	case <-w.bell:
	default:
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.doubt != sure {
		w.ring() // a call crashed since the last look at doubts, and that was its bell
	}
	partitions, all, next = w.poked, w.all, w.next
	w.poked, w.all, w.next = map[int]bool{}, false, time.Time{}
	return partitions, all, next
}

func (w *worker) ring() {
	select {
	case w.bell <- struct{}{}:
	default:
	}
}

// remember keeps for areas what the last look has left in the memory.
func (w *worker) remember() {
	known := w.memory.known()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.known = known
}

// await notes partitions where a key was left because a row of it is out. If it
// has landed meanwhile, they are looked at again at once.
func (w *worker) await(partitions []int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range partitions {
		if w.out[p] > 0 {
			w.waiting[p] = true
		} else {
			w.poked[p] = true
			w.ring()
		}
	}
}

// uncrowded leaves out partitions of which something is out, and has them looked
// at when it has landed.
func (w *worker) uncrowded(leases []Lease) []Lease {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(leases, func(l Lease) bool {
		if w.out[l.Partition] == 0 {
			return false
		}
		w.waiting[l.Partition] = true
		return true
	})
}

// landed notes that a claim is settled; clean says that all of its rows are
// published. next is the time until one of them is due again, 0 if none will be.
func (w *worker) landed(c Claim, clean bool, next time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.flights, c.ID)
	w.spilled = w.spilled || !clean
	for p := range partitionsOf(c.Rows) {
		if w.out[p]--; w.out[p] == 0 {
			delete(w.out, p)
		}
		if w.waiting[p] {
			delete(w.waiting, p)
			w.poked[p] = true
		}
	}
	if at := time.Now().Add(next); next > 0 && (w.next.IsZero() || at.Before(w.next)) {
		w.next = at
	}
	w.ring()
}
