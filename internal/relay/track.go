package relay

import (
	"cmp"
	"slices"
	"time"
)

// bounds are what a track reads at once and keeps.
type bounds struct {
	key, lane, low           int // rows listed of a key, of a lane, of class -1
	look, want               int // with more rows listed, or keys to fetch, looks can wait
	page, pageLeast, pageMax int // of a look, shared by its partitions
	fetch                    int
	sample                   int // keys of a dead topic that stay listed, to probe it with
}

func defaultBounds() bounds {
	return bounds{key: 1000, lane: 16000, low: 4000, look: 12000, want: 50000, page: 4000, pageLeast: 64, pageMax: 1 << 16, fetch: 500, sample: 512}
}

// pageOf is how many rows a look reads of each of so many partitions.
func (b bounds) pageOf(parts int) int { return max(b.pageLeast, b.page/parts) }

// A key of which rows are left out is checked at most once in a while, longer
// while nothing has changed.
const (
	checkFirst = time.Second
	checkMost  = 8 * time.Second
)

// track is what a lane keeps in mind of its queue, so that each row is read
// once: of each partition how far it was read, of each key what was read and
// not claimed, what is in hand, and from where on it doesn't keep rows. It is a
// hint: a claim reads its rows again [NOREREAD]. model/track.pml is its rule.
//
// It is not safe for concurrent use. A look (beginLook, looked), a fetch
// (nextFetch, fetched), due, first and a claim (choose, claimed) must not
// overlap each other [TWOREADERS]; settled and handBack may come between.
type track struct {
	bounds   bounds
	breakers *breakers
	parts    map[int]*partTrack
	keys     map[int64]*keyTrack
	dead     map[int64]int64 // topics that are shut, and from where on their rows were passed; 0: none was
	samples  map[int64]int   // rows of them that stay listed, about

	ready   [aloneBucket + 1]bucket
	wanted  keyHeap // to be fetched as soon as there is room
	checks  keyHeap // to be fetched at a time: so long after born
	listed  int     // rows
	low     int     // of class -1
	retired int     // partitions

	// born is when it was made. Times are counted from there, by the monotonic clock: the other
	// one may be set back, and keys would wait for as long.
	born     time.Time
	turns    int
	checked  bool // the last fetch was of one whose time had come
	suspects bool // had the last turn
	pages    bool // the last look was of partitions with more
}

// aloneBucket holds the keys whose head is in quarantine. Those below are of the
// keys that were in so many silent calls.
const aloneBucket = mostSilent + 1

// partTrack is how far a partition was read.
type partTrack struct {
	low     int64
	poked   bool // something was committed
	more    bool // the last page was full
	ended   bool // and once it was not: what is read now is new
	stalled int  // full pages in a row that ended beyond the horizon
	retired bool // it is to be released
	hand    int  // rows
	keys    int  // that are known
	moved   int  // counts what sets low back
}

func newTrack(b *breakers) *track {
	return &track{born: time.Now(), bounds: defaultBounds(), breakers: b, parts: map[int]*partTrack{}, keys: map[int64]*keyTrack{}, dead: map[int64]int64{}, samples: map[int64]int{}}
}

// take adds a partition, to be read from its beginning.
func (t *track) take(part int) {
	if t.parts[part] == nil {
		t.parts[part] = &partTrack{poked: true}
	}
}

// retire ends choosing from a partition.
func (t *track) retire(part int) {
	if p := t.parts[part]; p != nil && !p.retired {
		p.retired = true
		t.retired++
		t.updateAll(func(k *keyTrack) bool { return k.part == part })
	}
}

// busy says that something of the partition is in hand.
func (t *track) busy(part int) bool { return t.parts[part] != nil && t.parts[part].hand > 0 }

// drop forgets a partition.
func (t *track) drop(part int) {
	for _, k := range t.keys {
		if k.part == part {
			t.cut(k, 0)
			k.rest, k.want, k.hand = 0, false, nil
			t.update(k)
		}
	}
	if p := t.parts[part]; p != nil && p.retired {
		t.retired--
	}
	delete(t.parts, part)
}

// inHand is how many rows are, of all partitions.
func (t *track) inHand() int {
	rows := 0
	for _, p := range t.parts {
		rows += p.hand
	}
	return rows
}

// quarantined is how many keys wait for it.
func (t *track) quarantined() int { return t.ready[aloneBucket].len() }

// suspected are the keys that go in smaller calls. Of those that were in silent calls, it is only the
// ones with rows here: others may have been published by another process since, or given up.
func (t *track) suspected() int {
	n := 0
	for key, s := range t.breakers.keys {
		if s.count > 0 && t.keys[key] != nil {
			n++
		}
	}
	return n
}

// owned are the partitions, in order.
func (t *track) owned() []int {
	parts := make([]int, 0, len(t.parts))
	for part := range t.parts {
		parts = append(parts, part)
	}
	slices.Sort(parts)
	return parts
}

func (t *track) poke(part int) {
	if p := t.parts[part]; p != nil {
		p.poked = true
	}
}

func (t *track) pokeAll() {
	for _, p := range t.parts {
		p.poked = true
	}
}

// update puts the key where it belongs by what is known of it.
func (t *track) update(k *keyTrack) {
	k.changes++
	if k.heap != nil {
		k.heap.remove(k)
	}
	if k.idle() {
		if t.keys[k.key] == k {
			delete(t.keys, k.key)
			t.parts[k.part].keys--
		}
		return
	}
	p := t.parts[k.part]
	_, shut := t.dead[k.topic]
	if len(k.hand) > 0 || shut || p == nil || p.retired { // [PIPEBAD]
		return
	}
	k.class = k.rank()
	at := place{head: k.head(), key: k.key, class: k.class, of: k}
	switch {
	case len(k.list) > 0:
		t.ready[t.bucketOf(k)][k.class+1].push(at)
	case k.want && k.checkAt.IsZero():
		t.wanted.push(at)
	case k.want:
		at.at = int64(k.checkAt.Sub(t.born))
		t.checks.push(at)
	}
}

// know begins to keep a key in mind.
func (t *track) know(row QueueRow) *keyTrack {
	k := &keyTrack{key: row.Key, topic: row.Topic, part: row.Part}
	t.keys[row.Key] = k
	t.parts[row.Part].keys++
	return k
}

func (t *track) bucketOf(k *keyTrack) int {
	if k.list[0].losses >= quarantineFrom {
		return aloneBucket
	}
	return t.breakers.silentCalls(k.key)
}

func (t *track) updateAll(which func(*keyTrack) bool) {
	for _, k := range t.keys {
		if which(k) {
			t.update(k)
		}
	}
}

// add lists a row.
func (t *track) add(k *keyTrack, at int, e entry) {
	k.list = slices.Insert(k.list, at, e)
	t.listed++
	if e.class < 0 {
		t.low++
	}
}

// cut takes what is listed from at on.
func (t *track) cut(k *keyTrack, at int) {
	for _, e := range k.list[at:] {
		t.listed--
		if e.class < 0 {
			t.low--
		}
	}
	if k.list = k.list[:at]; at == 0 {
		k.list = nil
	}
}

// block remembers that the key's row at seq can't go on, nor what is behind it:
// none of that stays listed, and what is dropped is behind rest [KEEPBUF,
// RESTLOST]. What is due finds it again.
func (t *track) block(k *keyTrack, seq int64) {
	at, _ := find(k.list, seq)
	t.cut(k, at)
	k.rest, k.want, k.check = seq, false, false
}

// shut passes a topic's rows until it is back. Some stay listed, to probe the
// topic with; of all else its first seq is remembered.
func (t *track) shut(topic int64) {
	if _, ok := t.dead[topic]; ok {
		return
	}
	t.dead[topic] = 0
	var of []*keyTrack
	for _, k := range t.keys {
		if k.topic == topic {
			of = append(of, k)
		}
	}
	slices.SortFunc(of, func(a, b *keyTrack) int { // who was in no silent call first
		return cmp.Or(cmp.Compare(t.breakers.keySilent(a.key), t.breakers.keySilent(b.key)), cmp.Compare(a.head(), b.head()))
	})
	kept := 0
	for _, k := range of {
		keep := len(k.list)
		if room := t.bounds.sample - kept; keep > room {
			keep = min(1, max(0, room))
		}
		kept += keep
		if len(k.list) > keep {
			t.passFrom(k, keep)
		}
		t.update(k)
	}
	t.samples[topic] = kept
}

// passFrom takes what is listed from at on. A key that has a rest remembers that
// itself, or it would be fetched from behind it.
func (t *track) passFrom(k *keyTrack, at int) {
	if seq := k.list[at].seq; k.rest == 0 {
		t.pass(k.topic, seq)
	} else {
		k.rest = seq
		t.fetchLater(k)
	}
	t.cut(k, at)
}

func (t *track) pass(topic, seq int64) {
	if from := t.dead[topic]; from == 0 || seq < from {
		t.dead[topic] = seq
	}
}

// back says that a topic answers again: low goes back to what was passed of it.
func (t *track) back(topic int64) {
	from, ok := t.dead[topic]
	if !ok {
		return
	}
	delete(t.dead, topic)
	delete(t.samples, topic)
	for _, p := range t.parts {
		if from > 0 && p.low >= from {
			p.low, p.more = from-1, true
		}
		p.moved++ // a look that is out has left out rows of the topic
	}
	t.updateAll(func(k *keyTrack) bool { return k.topic == topic })
}
