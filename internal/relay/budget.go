package relay

import "sync"

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
