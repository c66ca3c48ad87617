package relay

import (
	"cmp"
	"slices"
	"time"
)

// look is a read of partitions that is out.
type look struct {
	parts   []PartLow
	limit   int // rows of each
	horizon int64
	moved   []int
}

// beginLook says what to read next, if there is something and room for it.
// horizon is the one that is known now: a row that is not visible yet is above
// the one that was known before the read, but may be below one that is known
// after it [NOHORIZON, HORIZONLATE].
func (t *track) beginLook(horizon int64) (look, bool) {
	if t.listed >= t.bounds.look || len(t.wanted.places) >= t.bounds.want {
		return look{}, false
	}
	var poked, more []int
	for part, p := range t.parts {
		switch {
		case p.retired:
		case p.more:
			more = append(more, part)
		case p.poked:
			poked = append(poked, part)
		}
	}
	parts := poked
	if t.pages = len(more) > 0 && (len(poked) == 0 || !t.pages); t.pages {
		parts = more // who filled the last page share this one
	}
	if len(parts) == 0 {
		return look{}, false
	}
	slices.Sort(parts)
	l := look{limit: t.bounds.pageOf(len(parts)), horizon: horizon}
	stalled := 0
	for _, part := range parts {
		p := t.parts[part]
		p.poked, p.more = false, false
		stalled = max(stalled, p.stalled)
		l.parts, l.moved = append(l.parts, PartLow{part, p.low}), append(l.moved, p.moved)
	}
	for ; stalled > 0 && l.limit < t.bounds.pageMax; stalled-- {
		l.limit *= 2
	}
	return l, true
}

// lookFailed says that the read was not answered.
func (t *track) lookFailed(l look) {
	for _, pl := range l.parts {
		t.poke(pl.Part)
	}
}

// looked takes in what was read, by (part, seq).
func (t *track) looked(l look, rows []QueueRow, now time.Time) {
	var touched []*keyTrack
	for i, pl := range l.parts {
		at, _ := slices.BinarySearchFunc(rows, pl.Part, func(r QueueRow, part int) int { return cmp.Compare(r.Part, part) })
		end := at
		for end < len(rows) && rows[end].Part == pl.Part {
			end++
		}
		p := t.parts[pl.Part]
		if p == nil || p.moved != l.moved[i] {
			// A topic is back meanwhile, so low went back: what is listed from here
			// would be before what is read from there.
			t.poke(pl.Part)
			continue
		}
		for _, row := range rows[at:end] {
			if k := t.keep(row, now); k != nil && !k.touched {
				k.touched = true
				touched = append(touched, k)
			}
		}
		p.raise(l, rows[at:end], t.bounds.pageMax)
	}
	for _, k := range touched {
		k.touched = false
		t.update(k)
	}
}

// raise moves low to the page's end, but never beyond the horizon: a row that
// appears below it would be passed for ever.
//
// A page that ends beyond the horizon is read once more from low on, with a
// larger limit, not from its end on: two reads see the rows between in
// different states, and a key's later row would be listed without an earlier
// one that has appeared between them.
func (p *partTrack) raise(l look, rows []QueueRow, most int) {
	to := l.horizon
	if len(rows) < l.limit {
		p.stalled, p.ended = 0, true
	} else {
		last := rows[len(rows)-1].Seq
		if p.more = true; last > to {
			p.more = l.limit < most
			p.stalled++
		} else {
			to, p.stalled = last, 0
		}
	}
	p.low = max(p.low, to)
}

// keep lists a row that a look has read, or leaves it out. It returns the key that has to be
// updated; nil: none has.
func (t *track) keep(row QueueRow, now time.Time) *keyTrack {
	k := t.keys[row.Key]
	if from, shut := t.dead[row.Topic]; shut {
		if k != nil && k.knows(row.Seq) {
			return nil
		}
		// As long as nothing was passed, what comes may be what is answered.
		if t.samples[row.Topic]++; from != 0 || t.samples[row.Topic] > t.bounds.sample {
			t.pass(row.Topic, row.Seq)
			return nil
		}
	}
	if k == nil {
		k = t.know(row)
	}
	_, inHand := find(k.hand, row.Seq)
	switch {
	case inHand:
		return nil
	case k.rest != 0 && row.Seq >= k.rest:
		if !t.leaveOut(k, now) {
			return nil
		}
	case row.Waits: // nor does what is behind it
		want := k.want
		t.block(k, row.Seq)
		k.want = want
	default:
		t.list(k, row)
	}
	return k
}

// leaveOut has the key looked at again: its head may be gone, with nobody behind
// it who could have been told [NOCHECK].
func (t *track) leaveOut(k *keyTrack, now time.Time) bool {
	if k.want {
		return false
	}
	k.want, k.check = true, true
	if k.checkAt.Before(now) {
		k.checkAt = now
	}
	return true
}

// list adds a row to its key's list, or, where that is full, has it fetched
// later.
func (t *track) list(k *keyTrack, row QueueRow) {
	e := row.entry()
	at, ok := find(k.list, row.Seq)
	switch {
	case ok:
		k.list[at] = e
	case len(k.list) >= t.bounds.key, t.listed >= t.bounds.lane, row.Class < 0 && t.low >= t.bounds.low:
		t.cut(k, at)
		k.rest = row.Seq
		t.fetchLater(k)
		if len(k.list) == 0 {
			k.class = row.Class
		}
	default:
		t.add(k, at, e)
	}
}

// fetchLater wants a key from its rest on, as soon as it can be.
func (t *track) fetchLater(k *keyTrack) {
	k.want, k.check, k.checkAt, k.pause = true, false, time.Time{}, 0
}

// lows are all partitions, for the rows of class 1 behind the page.
func (t *track) lows() []PartLow {
	var lows []PartLow
	for _, part := range t.owned() {
		if p := t.parts[part]; !p.retired {
			lows = append(lows, PartLow{part, p.low})
		}
	}
	return lows
}

// behind says that there is more than was read, so that class 1 is worth a look
// of its own.
func (t *track) behind() bool {
	for _, p := range t.parts {
		if p.more || p.poked {
			return true
		}
	}
	return false
}
