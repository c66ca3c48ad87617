package relay

import (
	"cmp"
	"slices"
	"time"
)

// entry is a row that the track keeps.
type entry struct {
	seq    int64
	bytes  int
	losses int
	class  int8
}

// The heaps that a key may be in; it has a place in each.
const (
	byClass = iota
	byAge
	byWant
	heaps
)

// keyTrack is what a lane knows of a key.
type keyTrack struct {
	key, topic int64
	part       int

	list []entry // read and not claimed, by seq; all below rest
	hand []entry // in a call, or in a claim that is out
	rest int64   // from here on rows aren't kept; 0: all are
	want bool    // to be fetched from rest on, once nothing is listed or in hand
	next int64   // a row of class 1 that wants the key; 0: none

	// A check is a fetch of one row, because a look left one out.
	check   bool
	checkAt time.Time // not before
	pause   time.Duration

	changes int  // of all that a fetch in between would undo
	class   int8 // of its list, or of what is wanted
	bucket  int  // of the heaps by class and by age
	at      [heaps]int
	order   order // while it is in heaps
}

// order is what a key's heaps go by. It stays as it is while the key is in them,
// whatever becomes of its list meanwhile.
type order struct {
	class int8
	head  int64
	at    time.Time
}

func newKey(row QueueRow) *keyTrack {
	return &keyTrack{key: row.Key, topic: row.Topic, part: row.Part, at: [heaps]int{-1, -1, -1}}
}

// idle says that nothing is remembered.
func (k *keyTrack) idle() bool {
	return len(k.list) == 0 && len(k.hand) == 0 && k.rest == 0 && !k.want
}

// knows says that the row is listed or in hand.
func (k *keyTrack) knows(seq int64) bool {
	if _, ok := find(k.list, seq); ok {
		return true
	}
	_, ok := find(k.hand, seq)
	return ok
}

func find(list []entry, seq int64) (int, bool) {
	if n := len(list); n == 0 || list[n-1].seq < seq { // most are new ones
		return n, false
	}
	return slices.BinarySearchFunc(list, seq, func(e entry, seq int64) int { return cmp.Compare(e.seq, seq) })
}

// rank is the highest class of what is listed: what is before a row has to go
// for it, so it takes it along.
func (k *keyTrack) rank() int8 {
	if len(k.list) == 0 {
		return k.class // of what is wanted
	}
	if k.next >= k.list[0].seq {
		return 1
	}
	class := int8(-1)
	for _, e := range k.list {
		class = max(class, e.class)
	}
	return class
}

// head is where the key begins.
func (k *keyTrack) head() int64 {
	if len(k.list) > 0 {
		return k.list[0].seq
	}
	return k.rest
}

// keyHeap is a heap of keys that knows where each is.
type keyHeap struct {
	keys []*keyTrack
	slot int
}

func (h *keyHeap) Len() int { return len(h.keys) }

func (h *keyHeap) Less(i, j int) bool {
	a, b := h.keys[i], h.keys[j]
	switch {
	case h.slot == byWant && !a.order.at.Equal(b.order.at):
		return a.order.at.Before(b.order.at)
	case h.slot != byAge && a.order.class != b.order.class:
		return a.order.class > b.order.class
	}
	if a.order.head != b.order.head {
		return a.order.head < b.order.head
	}
	return a.key < b.key // the same order whenever it is asked for
}

func (h *keyHeap) Swap(i, j int) {
	h.keys[i], h.keys[j] = h.keys[j], h.keys[i]
	h.keys[i].at[h.slot], h.keys[j].at[h.slot] = i, j
}

// Push is heap.Interface's.
func (h *keyHeap) Push(x any) {
	k := x.(*keyTrack)
	k.at[h.slot] = len(h.keys)
	h.keys = append(h.keys, k)
}

// Pop is heap.Interface's.
func (h *keyHeap) Pop() any {
	last := len(h.keys) - 1
	k := h.keys[last]
	h.keys[last] = nil
	h.keys, k.at[h.slot] = h.keys[:last], -1
	return k
}
