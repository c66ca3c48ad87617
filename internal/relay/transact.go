package relay

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/dberr"
)

const (
	// slotBits is where a claim's number says which slot its transaction is of: the upper
	// bits are the slot's number and one; 0: the claim has no transaction.
	slotBits = 48
	// markTimeout bounds the opening of a slot.
	markTimeout = 20 * time.Second
	// tellAgain is how often the log says that a reap waits for the broker.
	tellAgain = time.Minute
)

// slotOf is the slot of a claim's transaction.
func slotOf(n int64) int { return int(n>>slotBits) - 1 }

// transactionalID names a slot of a member. The member's number isn't enough: copies of a
// database count on with the same ones.
func transactionalID(name string, m MemberID, slot int) string {
	sum := sha256.Sum256([]byte(name))
	return fmt.Sprintf("%s%x-%d-%d", broker.TransactionalPrefix, sum[:6], m, slot)
}

// slot is what one call at a time publishes with, in a transaction. It is opened before
// the claim: a transaction whose slot is opened behind its claim could be committed after
// a reap has read the mark [REINIT]. It is free again when the claim's token is gone.
type slot struct {
	number int
	id     string
	tx     broker.Transactor // nil: it isn't open
	busy   bool
}

// slots are those of a membership. The lane's mutex protects them.
type slots struct {
	of      *membership
	all     []*slot
	opening bool
}

// enterSlot takes an open slot. It is false if there is none, and something to send with
// it: then one is being opened.
func (l *lane) enterSlot(life *membership) (one *slot, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &l.slots
	var shut *slot
	for _, one = range s.all {
		switch {
		case one.busy:
		case one.tx != nil:
			one.busy = true
			return one, true
		case shut == nil:
			shut = one
		}
	}
	if l.track.listed == 0 {
		return nil, true // nothing will be chosen
	}
	if s.opening || len(s.all) >= l.r.cfg.Outbox.Calls && shut == nil {
		return nil, false
	}
	if shut == nil {
		shut = &slot{number: len(s.all), id: transactionalID(l.r.name, life.id, len(s.all))}
		s.all = append(s.all, shut)
	}
	s.opening = true
	l.flights.Go(func() { l.openSlot(life, shut) })
	return nil, false
}

// leaveSlot has others use it. Of a membership that has ended nobody does.
func (l *lane) leaveSlot(s *slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.busy = false
	if !l.slots.has(s) {
		s.close()
	}
}

func (s *slots) has(one *slot) bool { return one.number < len(s.all) && s.all[one.number] == one }

func (s *slot) close() {
	if s.tx != nil {
		s.tx.Close()
		s.tx = nil
	}
}

// newSlots begins those of another membership, and closes the old ones that nobody uses
// any more. The lock is held.
func (l *lane) newSlots(life *membership) {
	for _, s := range l.slots.all {
		if !s.busy {
			s.close()
		}
	}
	l.slots = slots{of: life}
}

// openSlot opens it, for as long as its membership lasts and the relay goes on.
func (l *lane) openSlot(life *membership, s *slot) {
	defer l.wake.ring()
	ctx, cancel := l.r.untilStop(life.ctx)
	defer cancel()
	_, tx, err := l.opened(ctx, s.id)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.slots.of == life {
		l.slots.opening = false
	}
	if err == nil {
		s.tx = tx
	}
	if !l.slots.has(s) {
		s.close()
	}
}

// opened opens a transactional id as soon as the broker lets it, and tells people while
// it doesn't.
func (l *lane) opened(ctx context.Context, id string) (mark broker.Mark, tx broker.Transactor, err error) {
	told := false
	for pause := retryLater; ; pause = min(2*pause, retryMax) {
		if tx, mark, err = l.openID(ctx, id); err == nil {
			if told {
				l.log.Info("the broker opens transactions again")
				if l.health.answered() {
					l.r.keeper.hurry()
					l.r.hint()
				}
			}
			return mark, tx, nil
		}
		if ctx.Err() != nil {
			return mark, nil, ctx.Err()
		}
		l.failed(err)
		l.health.unanswered(time.Now(), false, dberr.Clip(err.Error()))
		if !told {
			told = true
			l.log.Warn("the broker opens no transaction; rows wait until it does", "error", err)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

func (l *lane) openID(ctx context.Context, id string) (broker.Transactor, broker.Mark, error) {
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	return l.transactional.Transact(ctx, id)
}

// publisher is what sends a wave in a transaction.
func (c *call) publisher(wave []int) func(context.Context, []broker.Message) error {
	sent := make(map[int64]bool, len(wave))
	for _, i := range wave {
		sent[c.rows[i].Seq] = true
	}
	tx, mark := c.f.slot.tx, broker.Mark{N: c.f.n, Note: noteOf(c.f.token, sent)}
	return func(ctx context.Context, messages []broker.Message) error { return tx.Publish(ctx, mark, messages) }
}

// transacted closes a slot whose transaction failed, and notes whether it may have been
// committed all the same.
func (c *call) transacted(wave []int, err error) {
	c.l.mu.Lock()
	tx := c.f.slot.tx
	c.f.slot.tx = nil
	c.l.mu.Unlock()
	tx.Close()
	if c.hanging || c.panic != nil || errors.Is(err, broker.ErrUndecided) {
		c.undecided = wave
	}
}

// decide finds out what became of a call whose transaction may have been committed: who
// opens the slot again ends what is open, and the mark behind that is the truth.
func (f *flight) decide(c *call) {
	mark, tx, err := f.l.opened(f.life.ctx, f.slot.id)
	if err != nil {
		return // the membership has ended: who reaps it decides
	}
	f.l.mu.Lock()
	f.slot.tx = tx
	f.l.mu.Unlock()
	if mark.N != f.n {
		return
	}
	for _, i := range c.undecided {
		delete(c.errs, i)
	}
}

// noteOf says which of a token's rows are in a transaction, both by seq: nothing if
// all are, otherwise a bit for each.
func noteOf(token []RowRef, sent map[int64]bool) string {
	if len(sent) == len(token) {
		return ""
	}
	mask := make([]byte, (len(token)+7)/8)
	for i, row := range token {
		if sent[row.Seq] {
			mask[i/8] |= 1 << (i % 8)
		}
	}
	return base64.RawStdEncoding.EncodeToString(mask)
}

// noted are the rows of a token that a note says are in the transaction.
func noted(token []RowRef, note string) (rows []RowRef, err error) {
	if note == "" {
		return token, nil
	}
	mask, err := base64.RawStdEncoding.DecodeString(note)
	if err != nil || len(mask) != (len(token)+7)/8 {
		return nil, fmt.Errorf("relay: the note of a transaction's mark is not of its %d rows: %q", len(token), note)
	}
	for i, row := range token {
		if bits.OnesCount8(mask[i/8]&(1<<(i%8))) > 0 {
			rows = append(rows, row)
		}
	}
	return rows, nil
}

var errNoTransactions = errors.New("relay: a member that has ended had transactions, and the broker has none any more")

// conclude ends a member whose reap has begun: it fences each transaction that may be
// open, reads its mark, settles what that says, and does away with the rest. Of our own
// member what wasn't committed is handed back; who was killed over it has a loss.
func (l *lane) conclude(ctx context.Context, m MemberID, name string, tokens []Token, own bool) (Reaped, error) {
	store := l.r.cfg.Store
	for _, token := range tokens {
		if l.transactional == nil {
			l.log.Error("rows may be delivered again", "error", errNoTransactions)
			break
		}
		tx, mark, err := l.openID(ctx, transactionalID(name, m, slotOf(token.N)))
		if errors.Is(err, errors.ErrUnsupported) {
			l.log.Error("rows may be delivered again", "error", errNoTransactions)
			break
		}
		if err != nil {
			return Reaped{}, err
		}
		tx.Close()
		s := Settlement{Member: m, Lane: l.id, N: token.N, Delete: l.r.cfg.Outbox.Retention.Delete, Durable: true}
		// An earlier or a later one says nothing of it [UPTO].
		if mark.N == token.N {
			s.Published, err = noted(token.Rows, mark.Note)
		} else if !own {
			continue
		}
		if err == nil {
			_, err = store.Settle(ctx, s)
		}
		if err != nil {
			return Reaped{}, err
		}
	}
	return store.Finish(ctx, m)
}

// leaves ends the lane's own membership, of which nothing is out.
func (l *lane) leaves(ctx context.Context, life *membership) error {
	if !l.exact {
		return l.r.cfg.Store.Leave(ctx, []MemberID{life.id})
	}
	reaped, err := l.r.cfg.Store.Reap(ctx, life.id, true)
	if err == nil && len(reaped.Undecided) > 0 {
		_, err = l.conclude(ctx, life.id, l.r.name, reaped.Undecided, true)
	}
	return err
}

// concludes ends another member aside: the broker may be away.
func (l *lane) concludes(m MemberState, tokens []Token) {
	if !l.concluding.CompareAndSwap(false, true) {
		return // the next poll finds it
	}
	l.r.done.Go(func() {
		defer l.concluding.Store(false)
		ctx, cancel := l.r.untilStop(l.r.hard)
		defer cancel()
		reaped, err := l.conclude(ctx, m.ID, m.Name, tokens, false)
		if err == nil {
			l.reaped(reaped)
			l.r.hint()
			return
		}
		if ctx.Err() != nil {
			return
		}
		l.failed(fmt.Errorf("partitions of a member that has ended wait until it is known what became of its transactions: %w", err))
		if now := time.Now(); now.Sub(l.toldOfReap) >= tellAgain {
			l.toldOfReap = now
			l.log.Warn("partitions of a member that has ended wait until it is known what became of its transactions", "member", m.Name, "partitions", m.Parts, "error", err)
		}
	})
}
