package relay

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/waybill-go/waybill/outbox"
)

// flight is a claim on its way: to the broker, and back to the database.
type flight struct {
	l     *lane
	life  *membership
	track *track
	n     int64
	c     *choice
	rows  []Claimed
	leave func()   // of the gate
	slot  *slot    // of its transaction; nil: it has none
	token []RowRef // with a slot: the rows that its token has, by seq; some may not go
}

// inHandEnough are so many rows that small batches keep a broker busy that answers within
// some ten milliseconds.
const inHandEnough = 1000

// mostInHand bounds the rows that a lane has in hand, and of these the ones that the broker
// has not answered: while a batch is claimed, another is called and a third settled. A kill
// makes what was called come again, which of a slow broker is the second, so what calls and
// batches allow is not used up where less is as fast.
func mostInHand(cfg outbox.Config) (all, unanswered int) {
	allowed := cfg.Calls * cfg.BatchSize
	return min(allowed, max(inHandEnough, 3*cfg.BatchSize)), min(allowed, max(inHandEnough, 2*cfg.BatchSize))
}

// claimsAtOnce are so many that a lane has out at a time, of different keys: each has a
// process of the database of its own, so that one by one the lane, the broker and the
// machine would wait for that. Between them is an instant without any, in which who
// waits for the member's row gets it: a renewal, a reap, an operator.
const claimsAtOnce = 2

// mostForgotten is how many claims that were not answered a membership remembers.
const mostForgotten = 1000

// claims makes claims and sends them off, as long as there are rows that may go and room
// for them. more says that there is more to do at once.
func (l *lane) claims(hard context.Context, life *membership) (more bool, err error) {
	for !l.r.stopping() {
		var next []*flight
		for len(next) < claimsAtOnce {
			f := l.next(life, len(next) == 0) //nolint:contextcheck // a slot is opened for the membership
			if f == nil {
				break
			}
			next = append(next, f)
		}
		if len(next) == 0 {
			return false, nil
		}
		if good, err := l.claimAll(hard, next); err != nil || !good {
			return false, err
		}
		if l.wake.rung() && l.claimed >= manyRows {
			return true, nil // new rows may be of a higher class
		}
	}
	return false, nil
}

// next is the next claim with what it needs; nil: none may go now. Only the first may be
// of a row in quarantine, which waits until nothing else is out.
func (l *lane) next(life *membership, first bool) *flight {
	var s *slot
	if l.exact {
		var ok bool
		if s, ok = l.enterSlot(life); !ok {
			return nil
		}
	}
	c, leave := l.choose(first)
	if c == nil {
		if s != nil {
			l.leaveSlot(s)
		}
		return nil
	}
	l.n++
	f := &flight{l: l, life: life, track: l.track, n: l.n, c: c, leave: leave, slot: s}
	if s != nil {
		f.n |= int64(s.number+1) << slotBits
		f.token = slices.Clone(c.rows)
	}
	return f
}

// claimAll makes claims at a time; good is false if one isn't made. One that isn't answered
// is forgotten, and its number goes to the next one, which deletes its token: if that
// appears later, nobody settles it. After a panic, which comes through, the lane joins
// anew once nothing is out.
func (l *lane) claimAll(hard context.Context, next []*flight) (good bool, err error) {
	answers := make([]answer, len(next))
	var others sync.WaitGroup
	for i, f := range next[1:] {
		others.Go(func() { answers[1+i] = f.claim(hard, nil) })
	}
	answers[0] = next[0].claim(hard, l.forget)
	others.Wait()
	if answers[0].good {
		l.forget = nil
	}
	good = true
	for i, a := range answers {
		if a.crash != nil {
			panic(a.crash)
		}
		if a.err != nil {
			l.forget, err = append(l.forget, next[i].n), a.err
		}
		good = good && a.good
	}
	if len(l.forget) >= mostForgotten {
		l.doubts() // with the membership all of its tokens go
	}
	return good, err
}

// choose takes the rows of the next claim in hand; nil: none may go now. What the gate
// lets through leaves it when its call has returned.
func (l *lane) choose(first bool) (c *choice, leave func()) {
	gate := l.r.gate
	if c, leave, ok := l.tryChoose(first); ok {
		return l.enter(c, leave)
	}
	gate.refused(l.wake)
	c, leave, _ = l.tryChoose(first)
	return l.enter(c, leave)
}

// tryChoose chooses what gate, budget and rows in hand let through; ok is false if the gate
// lets nothing.
func (l *lane) tryChoose(first bool) (c *choice, leave func(), ok bool) {
	gate, now := l.r.gate, time.Now()
	if !gate.begin() {
		return nil, nil, false
	}
	bytes := gate.bytes.reserve()
	if bytes == 0 {
		gate.end()
		return nil, nil, false
	}
	l.mu.Lock()
	if rows := l.room(now); rows > 0 {
		c = l.track.choose(now, limits{rows: rows, bytes: bytes, alone: first && gate.open(now)})
	}
	taken := 0
	if c != nil {
		taken = len(c.rows)
		l.out++
		l.unanswered += taken
	}
	l.mu.Unlock()
	if c == nil {
		gate.bytes.release(bytes)
		gate.returned(0, gate.end)
		return nil, nil, true
	}
	gate.bytes.adjust(bytes, c.bytes)
	return c, func() {
		l.answered(taken)
		gate.returned(c.bytes, gate.end)
	}, true
}

// answered has the lane claim others while these rows are settled, if it waited for that.
func (l *lane) answered(rows int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mostUnanswered-l.unanswered < l.r.cfg.Outbox.BatchSize {
		l.wake.ring()
	}
	l.unanswered -= rows
}

// room is how many rows the next claim may have. The lock is held.
func (l *lane) room(now time.Time) int {
	if l.out >= l.r.cfg.Outbox.Calls || now.Before(l.careful) {
		return 0
	}
	batch, hand := l.r.cfg.Outbox.BatchSize, l.track.inHand()
	room := min(batch, l.most-hand, l.mostUnanswered-l.unanswered)
	if room <= 0 || l.out > 0 && room < min(batch, hand/4) {
		return 0 // a claim of a few rows costs as much as one of many
	}
	return room
}

// enter waits, for a row in quarantine, until nothing else of the process is out.
func (l *lane) enter(c *choice, leave func()) (*choice, func()) {
	if c == nil || !c.alone {
		return c, leave
	}
	gate := l.r.gate
	wanted := gate.want(time.Now())
	leave()
	entered := false
	for wanted && !entered {
		changed := gate.change()
		if entered = gate.enter(); entered {
			break
		}
		select {
		case <-changed:
		case <-l.r.stop:
			wanted = false
			gate.returned(0, func() { gate.quarantine.leave(time.Now()) })
		}
	}
	if !entered {
		gate.refused(l.wake)
		l.back(c, l.track)
		return nil, nil
	}
	return c, func() { gate.returned(0, func() { gate.quarantine.leave(time.Now()) }) }
}

// back says that nothing was decided about what was chosen.
func (l *lane) back(c *choice, of *track) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of.handBack(c)
	l.out--
}

// answer is what became of a claim.
type answer struct {
	good  bool
	err   error
	crash error // what the store panicked with
}

// claim inserts the token, reads the rows and sends them off.
func (f *flight) claim(hard context.Context, forget []int64) (a answer) {
	defer func() {
		if v := recover(); v != nil {
			a = answer{crash: fmt.Errorf("%v\n%s", v, debug.Stack())}
		}
		if !a.good {
			f.unclaimed()
		}
	}()
	request := ClaimRequest{Member: f.life.id, Lane: f.l.id, N: f.n, Rows: f.c.rows, Durable: f.durable(), Forget: forget}
	claim, err := within(hard, func(ctx context.Context) (Claim, error) { return f.l.r.cfg.Store.Claim(ctx, request) })
	switch {
	case err != nil:
		return answer{err: err}
	case !claim.Alive:
		f.l.r.keeper.hurry() // its renewal finds out whether it is dead, or the server has crashed
		return answer{}
	}
	f.claimed(claim.Rows)
	f.l.flights.Go(func() { f.fly(hard) })
	return answer{good: true}
}

// claimed takes in the rows that a claim has read.
func (f *flight) claimed(rows []Claimed) {
	l := f.l
	l.mu.Lock()
	defer l.mu.Unlock()
	f.rows = f.track.claimed(f.c, rows)
	nameTopics(f.rows)
	last := ""
	for i := range f.rows {
		if topic := f.rows[i].Topic; topic != last {
			if hash := outbox.TopicHash(topic); l.names[hash] != topic {
				l.names[hash] = strings.Clone(topic) // of which others lie around
			}
			last = topic
		}
	}
	l.inFlight.Add(int64(len(f.rows)))
	l.claimed += len(f.rows)
}

// unclaimed says that there is no claim.
func (f *flight) unclaimed() {
	f.l.back(f.c, f.track)
	f.leave()
	if f.slot != nil {
		f.l.leaveSlot(f.slot)
	}
}
