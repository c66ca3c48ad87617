package relay

import "time"

// fetch is a read of a key that is out.
type fetch struct {
	key, from int64
	limit     int
	of        *keyTrack
	changes   int
}

// nextFetch says which key to read next: of those that are wanted now higher
// class first, then the oldest. They take turns with those whose time has come.
func (t *track) nextFetch(now time.Time) (fetch, bool) {
	for range 2 {
		t.checked = !t.checked
		f, ok := t.wantedFetch()
		if t.checked {
			f, ok = t.timedFetch(now)
		}
		if ok {
			return f, true
		}
	}
	return fetch{}, false
}

func (t *track) timedFetch(now time.Time) (fetch, bool) {
	at, ok := t.checkAt()
	if !ok || at.After(now) || t.listed >= t.bounds.lane {
		return fetch{}, false
	}
	return t.fetch(t.checks.first(), t.bounds.lane-t.listed), true
}

func (t *track) wantedFetch() (fetch, bool) {
	k := t.wanted.first()
	if k == nil {
		return fetch{}, false
	}
	room := t.bounds.look - t.listed
	if k.class > 0 {
		room = t.bounds.lane - t.listed
	} else if k.class < 0 {
		room = min(room, t.bounds.low/2-t.low)
	}
	return t.fetch(k, room), room > 0
}

func (t *track) fetch(k *keyTrack, room int) fetch {
	limit := min(t.bounds.fetch, room)
	if k.check {
		limit = 1
	}
	return fetch{key: k.key, from: k.rest, limit: limit, of: k, changes: k.changes}
}

// fetchFailed has the key wait, so that others go first.
func (t *track) fetchFailed(f fetch, now time.Time) {
	if k := f.of; k.changes == f.changes {
		k.checkAt = now.Add(checkFirst)
		t.update(k)
	}
}

// fetched takes in what was read of a key. It clears rest, or sets it behind a
// full page or to a row that waits.
func (t *track) fetched(f fetch, rows []QueueRow, now time.Time) {
	k := f.of
	if k.changes != f.changes { // its topic is shut, or it is to be read from elsewhere
		return
	}
	check, pause := k.check, k.pause
	k.rest, k.want, k.check, k.pause, k.checkAt = 0, false, false, 0, time.Time{}
	for _, row := range rows {
		if row.Waits {
			k.rest = row.Seq
			break
		}
		if k.want {
			break // its list was full
		}
		t.list(k, row)
	}
	if n := len(rows); k.rest == 0 && n == f.limit {
		k.rest = rows[n-1].Seq + 1
		t.fetchLater(k)
	}
	if k.next != 0 && (k.rest == 0 || k.next < k.rest) && !k.knows(k.next) {
		k.next = 0
	}
	if len(k.list) == 0 && k.rest != 0 && !k.want { // its head waits
		k.pause = checkFirst
		if check { // still
			k.pause = min(max(2*pause, checkFirst), checkMost)
		}
		k.checkAt = now.Add(k.pause)
	}
	t.update(k)
}

// due takes in rows whose time has come. Those that are listed or in hand are
// known: they stay in the index until they are settled.
func (t *track) due(rows []DueRow) {
	for _, row := range rows {
		t.wantFrom(QueueRow{Part: row.Part, Seq: row.Seq, Key: row.Key, Topic: row.Topic})
	}
}

// first takes in rows of class 1 behind the page. Each wants its key: what is
// before it comes along, so that the key's order never depends on a class.
func (t *track) first(rows []QueueRow, now time.Time) {
	for _, row := range rows {
		k := t.keys[row.Key]
		if row.Waits || k != nil && k.knows(row.Seq) {
			continue
		}
		if k != nil && k.rest != 0 && row.Seq >= k.rest {
			if k.want {
				k.next = row.Seq
			}
			t.leaveOut(k, now)
			t.raiseClass(k)
			continue
		}
		if k = t.wantFrom(row); k != nil {
			k.next = row.Seq
			t.raiseClass(k)
		}
	}
}

func (t *track) raiseClass(k *keyTrack) {
	if k.next != 0 && len(k.list) == 0 {
		k.class = 1
	}
	t.update(k)
}

// wantFrom has a key fetched because of a row that isn't known, from the first
// that may be its head on: that row, what was listed, what was left out, or what
// is above low and not looked at yet [FROMDUE]. Until then nothing of it is
// listed [WANTLISTS].
func (t *track) wantFrom(row QueueRow) *keyTrack {
	p, k := t.parts[row.Part], t.keys[row.Key]
	if p == nil || k != nil && (k.knows(row.Seq) || k.want && !k.check && k.rest <= row.Seq && len(k.list) == 0) {
		return nil
	}
	if _, shut := t.dead[row.Topic]; shut && k == nil {
		t.pass(row.Topic, row.Seq)
		return nil
	}
	if k == nil {
		k = t.know(row)
		k.class = row.Class
	}
	from := min(row.Seq, p.low+1)
	if len(k.list) > 0 {
		from = min(from, k.list[0].seq)
		t.cut(k, 0)
	}
	at := k.checkAt
	t.fetchLater(k)
	if k.rest != 0 && row.Seq > k.rest {
		k.checkAt = at // it is behind a head that waited when it was fetched
	}
	if k.rest == 0 || from < k.rest {
		k.rest = from
	}
	t.update(k)
	return k
}
