package relay

import (
	"cmp"
	"slices"
	"sort"
	"time"
)

// limits are what a claim may take.
type limits struct {
	rows  int
	bytes int
	alone bool // quarantine may be entered
}

// choice is what a claim is to take, and later its call: runs of keys, each
// from its head on [NOHEAD].
type choice struct {
	rows    []RowRef // by seq
	keys    []*chosen
	bytes   int
	count   int   // silent calls that these keys were in
	alone   bool  // its row is in quarantine
	durable bool  // a row has a loss
	unsent  bool  // it goes back as it is
	lane    bool  // the lane's breaker lets it through
	topic   int64 // a breaker lets a row of this topic through
	probe   bool
	began   uint64 // see breakers.began
}

type chosen struct {
	of      *keyTrack
	entries []entry
}

// choose takes the next claim's rows in hand, nil if there are none: what a
// breaker lets through, a row in quarantine, or the oldest keys of the highest
// class; every fourth time by age alone. Keys of silent calls and others take
// turns. A key's run goes whole, so that other calls have other keys.
func (t *track) choose(now time.Time, lim limits) *choice {
	if t.breakers.lane.open() {
		if !t.breakers.lane.may(now) {
			return nil
		}
		for _, topic := range t.breakers.open() {
			if t.reopen(now, topic) {
				return nil // what it has is to be looked at first
			}
		}
		c := t.chooseProbe(lim, func(*keyTrack) bool { return true }, &choice{lane: true, probe: true})
		if c == nil {
			t.breakers.lane.rest(now, t.breakers.random())
			t.unprobed(now, t.breakers.open())
		}
		return c
	}
	for _, topic := range t.breakers.due(now) {
		if t.reopen(now, topic) {
			continue
		}
		of := func(k *keyTrack) bool { return k.topic == topic }
		if c := t.chooseProbe(lim, of, &choice{topic: topic, probe: true}); c != nil {
			return c
		}
		t.unprobed(now, []int64{topic})
	}
	if k := t.ready[aloneBucket].oldest(); lim.alone && k != nil {
		c := &choice{alone: true, count: t.breakers.silentCalls(k.key)}
		t.hold(c, k, 1)
		t.breakers.began(c)
		return c
	}
	for range 2 {
		t.suspects = !t.suspects
		bucket := 0
		if t.suspects {
			bucket = t.suspicious()
		}
		if c := t.chooseOf(bucket, lim); c != nil {
			return c
		}
	}
	return nil
}

// suspicious is the bucket of the oldest key that was in a silent call.
func (t *track) suspicious() int {
	best, head := 1, int64(0)
	for bucket := 1; bucket <= mostSilent; bucket++ {
		if k := t.ready[bucket].oldest(); k != nil && (head == 0 || k.place().head < head) {
			best, head = bucket, k.place().head
		}
	}
	return best
}

// chooseOf takes keys of one count of silent calls only: the more, the fewer.
func (t *track) chooseOf(bucket int, lim limits) *choice {
	ready := &t.ready[bucket]
	if ready.len() == 0 {
		return nil
	}
	next := ready.highest
	if t.turns++; t.turns%4 == 0 {
		next = ready.oldest
	}
	rows, keys := lim.rows, lim.rows
	c := &choice{count: bucket, rows: make([]RowRef, 0, min(rows, t.listed)), keys: make([]*chosen, 0, min(rows, ready.len()))}
	switch bucket {
	case 0:
	case mostSilent:
		keys = 1
	default:
		rows = min(rows, silentRows[bucket])
	}
	for k := next(); k != nil && rows > 0 && len(c.keys) < keys; k = next() {
		n := k.run(rows, lim.bytes-c.bytes, len(c.keys) == 0)
		if n == 0 {
			break
		}
		rows -= n
		t.hold(c, k, n)
	}
	if len(c.keys) == 0 {
		return nil
	}
	t.breakers.began(c)
	return c.finish()
}

// run is how many rows of the list fit: the first always does if the claim is
// empty, so that none is too large for ever; none in quarantine does.
func (k *keyTrack) run(rows, bytes int, empty bool) int {
	for i, e := range k.list[:min(rows, len(k.list))] {
		if bytes -= e.bytes; bytes < 0 && (i > 0 || !empty) || e.losses >= quarantineFrom {
			return i
		}
	}
	return min(rows, len(k.list))
}

// hold takes the first n listed rows of a key in hand.
func (t *track) hold(c *choice, k *keyTrack, n int) {
	taken := k.list[:n:n]
	k.list = k.list[n:]
	for _, e := range taken {
		t.listed--
		if e.class < 0 {
			t.low--
		}
		c.bytes += e.bytes
		c.durable = c.durable || e.losses > 0
		c.rows = append(c.rows, RowRef{k.part, e.seq, k.key})
	}
	k.hand = taken
	t.parts[k.part].hand += n
	c.keys = append(c.keys, &chosen{k, taken})
	t.update(k)
}

func (c *choice) finish() *choice {
	slices.SortFunc(c.rows, func(a, b RowRef) int { return cmp.Compare(a.Seq, b.Seq) })
	return c
}

// chooseProbe takes one row: of the topic and then of the key whose last silent
// call is longest ago, the oldest of these [SAMEPROBE, NOTOPIC]. It looks at all
// keys: a breaker lets one through a second.
func (t *track) chooseProbe(lim limits, of func(*keyTrack) bool, c *choice) *choice {
	var best *keyTrack
	for _, k := range t.keys {
		p := t.parts[k.part]
		if len(k.list) == 0 || len(k.hand) > 0 || p == nil || p.retired || !of(k) || k.list[0].losses >= quarantineFrom && !lim.alone {
			continue
		}
		if best == nil || t.probesBefore(k, best) {
			best = k
		}
	}
	if best == nil {
		return nil
	}
	c.alone = best.list[0].losses >= quarantineFrom
	t.hold(c, best, 1)
	t.breakers.began(c)
	t.breakers.sent(c)
	return c
}

// reopen goes back for a topic of which all that stayed listed was tried in vain,
// now and then: among what was passed may be a key that is answered.
func (t *track) reopen(now time.Time, topic int64) bool {
	b := t.breakers.topic(topic)
	if t.dead[topic] == 0 || b.out || now.Sub(b.since) < reopenAfter {
		return false
	}
	for _, k := range t.keys {
		if k.topic == topic && len(k.list) > 0 && t.breakers.keySilent(k.key) == 0 {
			return false
		}
	}
	b.breaker = breaker{}
	t.back(topic)
	return true
}

// unprobed goes back for topics that have nothing left to probe them with: what
// they had was moved or taken away. The others wait again: what they have is in
// hand, or in quarantine.
func (t *track) unprobed(now time.Time, topics []int64) {
	has := map[int64]bool{}
	for _, k := range t.keys {
		if len(k.list)+len(k.hand) > 0 {
			has[k.topic] = true
		}
	}
	for _, topic := range topics {
		if b := t.breakers.topic(topic); has[topic] {
			b.rest(now, t.breakers.random())
		} else {
			b.breaker = breaker{}
			t.back(topic)
		}
	}
}

func (t *track) probesBefore(a, b *keyTrack) bool {
	b1, b2 := a.list[0].losses >= quarantineFrom, b.list[0].losses >= quarantineFrom
	switch {
	case b1 != b2: // what may kill comes last
		return b2
	case t.breakers.topicSilent(a.topic) != t.breakers.topicSilent(b.topic):
		return t.breakers.topicSilent(a.topic) < t.breakers.topicSilent(b.topic)
	case t.breakers.keySilent(a.key) != t.breakers.keySilent(b.key):
		return t.breakers.keySilent(a.key) < t.breakers.keySilent(b.key)
	}
	return a.list[0].seq < b.list[0].seq
}

// claimed takes in what the claim has read, and returns what may be sent of it.
// What is gone is left out; a row that waits by now ends its key's run.
func (t *track) claimed(c *choice, rows []Claimed) []Claimed {
	if slices.EqualFunc(c.rows, rows, func(ref RowRef, row Claimed) bool { return ref.Seq == row.Seq && !row.Waits }) {
		return rows // as was believed
	}
	c.rows = c.rows[:0]
	keys := c.keys
	c.keys = c.keys[:0]
	for _, ch := range keys {
		k, n := ch.of, len(ch.entries)
		kept, waits := ch.take(rows)
		t.count(k.part, len(kept)-n)
		ch.entries, k.hand = kept, kept
		for _, e := range kept {
			c.rows = append(c.rows, RowRef{k.part, e.seq, k.key})
		}
		if waits != 0 {
			t.block(k, waits)
		}
		if len(kept) > 0 {
			c.keys = append(c.keys, ch)
		}
		t.update(k)
	}
	c.finish()
	return slices.DeleteFunc(rows, func(r Claimed) bool {
		_, sends := slices.BinarySearchFunc(c.rows, r.Seq, func(ref RowRef, seq int64) int { return cmp.Compare(ref.Seq, seq) })
		return !sends
	})
}

// take is what may be sent of the run, and the seq of a row that waits.
func (ch *chosen) take(rows []Claimed) (kept []entry, waits int64) {
	kept = make([]entry, 0, len(ch.entries))
	for _, e := range ch.entries {
		switch at, there := bySeq(rows, e.seq); {
		case !there:
		case rows[at].Waits:
			return kept, e.seq
		default:
			kept = append(kept, e)
		}
	}
	return kept, 0
}

// bySeq finds a row of a claim, which has them in the order of seq.
func bySeq(rows []Claimed, seq int64) (at int, there bool) {
	at = sort.Search(len(rows), func(i int) bool { return rows[i].Seq >= seq })
	return at, at < len(rows) && rows[at].Seq == seq
}

func (t *track) count(part, rows int) {
	if p := t.parts[part]; p != nil {
		p.hand += rows
	}
}

// handBack says that nothing was decided about the choice's rows: the claim was
// not answered, or the call not made. They are listed again at once [BACKLOST].
func (t *track) handBack(c *choice) {
	t.breakers.landed(c)
	for _, ch := range c.keys {
		t.land(ch, fate{back: ch.entries})
	}
}

// fate is what becomes of a key's rows in a call, but those that left the queue.
type fate struct {
	waits int64   // this row stays and waits, with all behind it
	back  []entry // nothing was decided
}

// settled takes in that a settle has committed.
func (t *track) settled(c *choice, o outcome) {
	for i, ch := range c.keys {
		t.land(ch, o.fates[i])
	}
}

func (t *track) land(ch *chosen, f fate) {
	k := ch.of
	if t.keys[k.key] != k { // its partition was dropped
		return
	}
	t.count(k.part, -len(ch.entries))
	k.hand = nil
	if f.waits != 0 {
		t.block(k, f.waits)
	} else if len(f.back) > 0 {
		t.relist(k, f.back)
	}
	t.update(k)
}

// relist lists what was in hand. Where the key is to be fetched from before it,
// the fetch will find it.
func (t *track) relist(k *keyTrack, back []entry) {
	for _, e := range back {
		if k.rest != 0 && e.seq >= k.rest {
			t.fetchLater(k)
			return
		}
		if at, ok := find(k.list, e.seq); !ok {
			t.add(k, at, e)
		}
	}
}
