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

// entry is what the track keeps of the row.
func (r QueueRow) entry() entry { return entry{r.Seq, r.Bytes, r.Losses, r.Class} }

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

	touched bool     // in the look that is taken in
	changes int      // of all that a fetch in between would undo
	class   int8     // of its list, or of what is wanted
	heap    *keyHeap // that it is in; nil: in none
	index   int      // in heap
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
