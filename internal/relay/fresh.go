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
	f := &flight{l: l, life: life, c: &choice{}}
	defer func() { // unless it flies
		if f != nil {
			gate.returned(bytes, gate.end)
		}
	}()
	look, ok := l.beginFresh(bytes)
	if !ok {
		return nil
	}
	l.n++
	begin := time.Now()
	request := LookRequest{Member: life.id, Lane: l.id, N: l.n, Parts: look.parts, Limit: look.limit, Bytes: bytes}
	looked, err := within(hard, func(ctx context.Context) (Looked, error) { return l.r.cfg.Store.LookAndClaim(ctx, request) })
	if err != nil {
		l.forget = append(l.forget, l.n)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.track.lookFailed(look)
		return err
	}
	f.track, f.n = l.track, l.n
	if !f.found(look, looked, time.Since(begin)) {
		return nil
	}
	gate.bytes.adjust(bytes, f.c.bytes)
	taken, held := len(f.c.rows), f.c.bytes
	f.leave = func() {
		l.answered(taken)
		gate.returned(held, gate.end)
	}
	flying := f
	f = nil
	flying.claimed(looked.Claim.Rows)
	l.flights.Go(func() { flying.fly(hard) })
	return nil
}

// beginFresh says what to look at; ok is false if nothing is to be claimed so.
func (l *lane) beginFresh(bytes int) (look look, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	room := l.room(time.Now())
	if bytes == 0 || room <= 0 {
		return look, false
	}
	return l.track.beginFresh(l.r.horizon.Load().at(), room)
}

// found takes in what was found, and says whether it was claimed.
func (f *flight) found(of look, looked Looked, took time.Duration) bool {
	l := f.l
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pace.looked(true, took)
	l.track.looked(of, looked.Found, time.Now())
	for _, row := range looked.Found {
		l.r.seen(row.Seq)
	}
	if !looked.Claim.Alive {
		return false
	}
	f.c = l.track.chooseFound(looked.Found)
	l.out++
	l.unanswered += len(f.c.rows)
	return true
}

// beginFresh is a look at poked partitions of which no key is known, of at most so many rows.
func (t *track) beginFresh(horizon int64, rows int) (look, bool) {
	if t.listed > 0 || len(t.dead) > 0 || t.breakers.lane.open() {
		return look{}, false
	}
	l := look{horizon: horizon}
	for _, part := range t.owned() {
		if p := t.parts[part]; p.poked && p.keys == 0 && !p.more && !p.retired && len(l.parts) < rows {
			p.poked = false
			l.parts, l.moved = append(l.parts, PartLow{part, p.low}), append(l.moved, p.moved)
		}
	}
	if len(l.parts) == 0 {
		return l, false
	}
	l.limit = rows / len(l.parts)
	return l, true
}

// chooseFound takes what was found and claimed in hand, but what may not go by now, or not
// like this: a breaker has opened meanwhile, or its key was in silent calls. That stays
// listed, as if it weren't claimed.
func (t *track) chooseFound(rows []QueueRow) *choice {
	c := &choice{}
	for _, row := range rows {
		k := t.keys[row.Key]
		if k != nil && len(k.list) > 0 && k.heap != nil && t.bucketOf(k) == 0 && !t.breakers.lane.open() {
			t.hold(c, k, len(k.list))
		}
	}
	t.breakers.began(c)
	return c.finish()
}
