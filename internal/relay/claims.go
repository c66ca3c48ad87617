package relay

import (
	"context"
	"slices"
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

// inHandEnough are so many rows that a lane is never idle beside a broker that answers
// within some ten milliseconds: while some are claimed, others are called and settled.
const inHandEnough = 1000

// mostInHand bounds the rows that a lane has in hand. A kill makes these come again, so
// what calls and batches allow is not used up where less is as fast.
func mostInHand(cfg outbox.Config) int {
	return min(cfg.Calls*cfg.BatchSize, max(inHandEnough, 4*cfg.BatchSize))
}

// claims makes claims and sends them off, as long as there are rows that may go and room
// for them. more says that there is more to do at once.
func (l *lane) claims(hard context.Context, life *membership) (more bool, err error) {
	for !l.r.stopping() {
		var s *slot
		if l.exact {
			var ok bool
			if s, ok = l.enterSlot(life); !ok { //nolint:contextcheck // it is opened for the membership
				return false, nil
			}
		}
		c, leave := l.choose()
		if c == nil {
			if s != nil {
				l.leaveSlot(s)
			}
			return false, nil
		}
		f := &flight{l: l, life: life, track: l.track, c: c, leave: leave, slot: s}
		if ok, err := l.claim(hard, f); err != nil || !ok {
			if s != nil {
				l.leaveSlot(s)
			}
			return false, err
		}
		l.flights.Go(func() { f.fly(hard) })
		if l.wake.rung() && l.claimed >= manyRows {
			return true, nil // new rows may be of a higher class
		}
	}
	return false, nil
}

// choose takes the rows of the next claim in hand; nil: none may go now. What the gate
// lets through leaves it when its call has returned.
func (l *lane) choose() (c *choice, leave func()) {
	gate := l.r.gate
	if c, leave, ok := l.tryChoose(); ok {
		return l.enter(c, leave)
	}
	gate.refused(l.wake)
	c, leave, _ = l.tryChoose()
	return l.enter(c, leave)
}

// tryChoose chooses what gate, budget and rows in hand let through; ok is false if the gate
// lets nothing.
func (l *lane) tryChoose() (c *choice, leave func(), ok bool) {
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
		c = l.track.choose(now, limits{rows: rows, bytes: bytes, alone: gate.open(now)})
	}
	if c != nil {
		l.out++
	}
	l.mu.Unlock()
	if c == nil {
		gate.bytes.release(bytes)
		gate.returned(0, gate.end)
		return nil, nil, true
	}
	gate.bytes.adjust(bytes, c.bytes)
	return c, func() { gate.returned(c.bytes, gate.end) }, true
}

// room is how many rows the next claim may have. The lock is held.
func (l *lane) room(now time.Time) int {
	if l.out >= l.r.cfg.Outbox.Calls || now.Before(l.careful) {
		return 0
	}
	batch, hand := l.r.cfg.Outbox.BatchSize, l.track.inHand()
	room := min(batch, l.most-hand)
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

// claim inserts the token and reads the rows. One that isn't answered is forgotten, and
// its number goes to the next one to be deleted: if it appears later, nobody settles it.
func (l *lane) claim(hard context.Context, f *flight) (ok bool, err error) {
	l.n++
	f.n = l.n
	if f.slot != nil {
		f.n |= int64(f.slot.number+1) << slotBits
		f.token = slices.Clone(f.c.rows)
	}
	answered := false
	defer func() {
		if !answered { // it panicked: the lane joins anew once nothing is out
			l.back(f.c, f.track)
			f.leave()
		}
	}()
	answer, err := within(hard, func(ctx context.Context) (Claim, error) {
		return l.r.cfg.Store.Claim(ctx, ClaimRequest{Member: f.life.id, Lane: l.id, N: f.n, Rows: f.c.rows, Durable: f.durable(), Forget: l.forget})
	})
	answered = true
	if err != nil || !answer.Alive {
		if err != nil {
			l.forget = append(l.forget, f.n)
		} else {
			l.r.keeper.hurry() // its renewal finds out whether it is dead, or the server has crashed
		}
		l.back(f.c, f.track)
		f.leave()
		return false, err
	}
	l.forget = nil
	l.mu.Lock()
	f.rows = f.track.claimed(f.c, answer.Rows)
	nameTopics(f.rows)
	last := ""
	for i := range f.rows {
		if topic := f.rows[i].Topic; topic != last {
			l.names[outbox.TopicHash(topic)], last = topic, topic
		}
	}
	l.mu.Unlock()
	l.inFlight.Add(int64(len(f.rows)))
	l.claimed += len(f.rows)
	return true, nil
}
