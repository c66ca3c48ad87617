package relay

import (
	"maps"
	"slices"
	"sync"
)

// wake tells a lane's loop that there is something to do. Its channel holds one
// value: the loop takes it before it looks, so that what is committed while it looks
// wakes it once more.
type wake struct {
	c chan struct{}

	mu    sync.Mutex
	parts map[int]bool
	all   bool
}

func newWake() *wake { return &wake{c: make(chan struct{}, 1), parts: map[int]bool{}} }

// poke says that rows of a partition were committed.
func (w *wake) poke(part int) {
	w.mu.Lock()
	w.parts[part] = true
	w.mu.Unlock()
	w.ring()
}

// everywhere says that rows may have been committed in any partition.
func (w *wake) everywhere() {
	w.mu.Lock()
	w.all = true
	w.mu.Unlock()
	w.ring()
}

// ring says that something else has changed, such as that a call has returned.
func (w *wake) ring() {
	select {
	case w.c <- struct{}{}:
	default:
	}
}

// rung says that there is something to take.
func (w *wake) rung() bool { return len(w.c) > 0 }

// take is what was poked since the last time.
func (w *wake) take() (parts []int, all bool) {
	select {
	case <-w.c:
	default:
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	parts, all = slices.Sorted(maps.Keys(w.parts)), w.all
	clear(w.parts)
	w.all = false
	return parts, all
}
