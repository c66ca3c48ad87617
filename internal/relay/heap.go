package relay

// place is where a key stands among others. It stays as it is while the key is in a
// heap, whatever becomes of its list meanwhile.
type place struct {
	at    int64 // not before, in nanoseconds since the track's born; 0: at any time
	head  int64
	key   int64
	class int8
	of    *keyTrack
}

func (p *place) before(q *place) bool {
	switch {
	case p.at != q.at:
		return p.at < q.at
	case p.class != q.class:
		return p.class > q.class
	case p.head != q.head:
		return p.head < q.head
	}
	return p.key < q.key // the same order whenever it is asked for
}

// keyHeap is a heap of keys, each with four below it: half the steps of a binary one, and
// each step waits for the memory of a key, of which a lane has thousands. A key is in one
// heap at most, and knows where. What keys are compared by stands side by side.
type keyHeap struct{ places []place }

const width = 4

// place is where the key stands in its heap.
func (k *keyTrack) place() *place { return &k.heap.places[k.index] }

// first is the key that goes first; nil: there is none.
func (h *keyHeap) first() *keyTrack {
	if len(h.places) == 0 {
		return nil
	}
	return h.places[0].of
}

func (h *keyHeap) push(p place) {
	h.places = append(h.places, p)
	p.of.heap = h
	h.up(len(h.places)-1, p)
}

// remove takes out the key, which is in this heap.
func (h *keyHeap) remove(k *keyTrack) {
	at, last := k.index, len(h.places)-1
	p := h.places[last]
	h.places[last] = place{}
	h.places = h.places[:last]
	k.heap = nil
	if at < last {
		h.down(at, p)
	}
}

// up puts p at i, or as far above as it has to be.
func (h *keyHeap) up(i int, p place) {
	for i > 0 {
		parent := (i - 1) / width
		if !p.before(&h.places[parent]) {
			break
		}
		h.set(i, h.places[parent])
		i = parent
	}
	h.set(i, p)
}

// down puts p at i, or as far below as it has to be; if it hasn't, perhaps above.
func (h *keyHeap) down(i int, p place) {
	begin := i
	for {
		child := width*i + 1
		if child >= len(h.places) {
			break
		}
		for other, last := child+1, min(child+width, len(h.places)); other < last; other++ {
			if h.places[other].before(&h.places[child]) {
				child = other
			}
		}
		if !h.places[child].before(&p) {
			break
		}
		h.set(i, h.places[child])
		i = child
	}
	if i == begin {
		h.up(i, p)
		return
	}
	h.set(i, p)
}

func (h *keyHeap) set(i int, p place) {
	h.places[i] = p
	p.of.index = i
}

// bucket has keys that may be chosen, by class: those of class c at c + 1.
type bucket [3]keyHeap

func (b *bucket) len() int {
	n := 0
	for i := range b {
		n += len(b[i].places)
	}
	return n
}

// highest is the oldest key of the highest class; nil: there is none.
func (b *bucket) highest() *keyTrack {
	for i := len(b) - 1; i >= 0; i-- {
		if k := b[i].first(); k != nil {
			return k
		}
	}
	return nil
}

// oldest is the oldest key of all classes; nil: there is none.
func (b *bucket) oldest() *keyTrack {
	var best *place
	for i := range b {
		if len(b[i].places) == 0 {
			continue
		}
		if p := &b[i].places[0]; best == nil || p.head < best.head || p.head == best.head && p.key < best.key {
			best = p
		}
	}
	if best == nil {
		return nil
	}
	return best.of
}
