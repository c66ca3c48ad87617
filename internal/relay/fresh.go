package relay

import (
	"context"
	"time"
)

// claimFresh looks at partitions of which the lane knows no key, and claims what the look
// finds with it: nothing of theirs is in hand, waits or was left out, so that a claim would
// take just that, one round trip later. Only where nothing else waits for a claim.
func (l *lane) claimFresh(hard context.Context, life *membership) error {
	gate := l.r.gate
	if l.exact || len(l.forget) > 0 || l.r.stopping() || !gate.begin() {
		return nil
	}
	bytes := gate.bytes.reserve()
	if bytes == 0 {
		gate.end() // wakes nobody, who would find no more
		return nil
	}
	leave := func() { gate.returned(bytes, gate.end) }
	flies := false
	defer func() {
		if !flies {
			leave()
		}
	}()
	l.mu.Lock()
	rows := l.room(time.Now())
	look, ok := l.track.beginFresh(l.r.horizon.Load().at(), rows)
	l.mu.Unlock()
	if !ok {
		return nil
	}
	l.n++
	f := &flight{l: l, life: life, track: l.track, n: l.n, leave: leave}
	begin := time.Now()
	request := LookRequest{Member: life.id, Lane: l.id, N: f.n, Parts: look.parts, Limit: look.limit, Rows: rows, Bytes: bytes}
	looked, err := within(hard, func(ctx context.Context) (Looked, error) { return l.r.cfg.Store.LookAndClaim(ctx, request) })
	if err != nil {
		l.forget = append(l.forget, f.n)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.track.lookFailed(look)
		return err
	}
	if flies = f.found(look, looked, time.Since(begin)); !flies {
		return nil
	}
	taken := len(f.c.rows)
	gate.bytes.adjust(bytes, f.c.bytes)
	bytes = f.c.bytes
	f.leave = func() {
		l.answered(taken)
		leave()
	}
	f.claimed(looked.Claim.Rows)
	l.flights.Go(func() { f.fly(hard) })
	return nil
}

// found takes in what was found, and says whether it was claimed.
func (f *flight) found(of look, looked Looked, took time.Duration) bool {
	l := f.l
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pace.looked(true, took)
	if looked.Claim.Alive {
		f.c = l.track.chooseFound(looked.Found)
		l.out++
		l.unanswered += len(f.c.rows)
	}
	l.track.looked(of, looked.Found, time.Now())
	for _, row := range looked.Found {
		l.r.seen(row.Seq)
	}
	return looked.Claim.Alive
}

// beginFresh is a look at what is new in partitions of which no key is known, if there is room
// for rows. In one that was not read to its end before, a claim is to choose.
func (t *track) beginFresh(horizon int64, rows int) (look, bool) {
	l := look{horizon: horizon}
	if rows <= 0 || t.listed > 0 || len(t.dead) > 0 || t.breakers.lane.open() {
		return l, false
	}
	for _, part := range t.owned() {
		if p := t.parts[part]; p.poked && p.keys == 0 && p.ended && !p.more && !p.retired {
			p.poked = false
			l.parts, l.moved = append(l.parts, PartLow{part, p.low}), append(l.moved, p.moved)
		}
	}
	if len(l.parts) == 0 {
		return l, false
	}
	l.limit = t.bounds.pageOf(len(l.parts))
	return l, true
}

// chooseFound takes in hand what was found and claimed, of keys that nobody knew. If one of
// them was in silent calls, which go in calls of their own, nothing is sent.
func (t *track) chooseFound(rows []QueueRow) *choice {
	c := &choice{}
	var found []*keyTrack
	for _, row := range rows {
		k := t.keys[row.Key]
		if k == nil {
			k = t.know(row)
			found = append(found, k)
		}
		t.add(k, len(k.list), row.entry())
	}
	for _, k := range found {
		c.unsent = c.unsent || t.breakers.silentCalls(k.key) > 0
		t.hold(c, k, len(k.list))
	}
	t.breakers.began(c)
	return c.finish()
}
