package simulation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/relay/relaytest"
)

// What processes ask of a broker with transactions, beside the steps of the store: like
// these, each waits for its turn, is refused, not answered, or happens late.
const (
	opens    relaytest.Step = "open"     // a transactional id
	transact relaytest.Step = "transact" // a transaction and its commit
	peek     relaytest.Step = "peek"     // NOINIT, MARKERFIRST: the mark, without opening the id
)

// transactions are those of a transactional id, which outlives who has it open.
type transactions struct {
	epoch int
	mark  broker.Mark
}

// exactWire is a process's connection to a broker with transactions.
type exactWire struct{ *wire }

// broker is what a process publishes to.
func (w *world) broker(p *process) broker.Broker {
	if w.plan.exact {
		return exactWire{&wire{w, p}}
	}
	return &wire{w, p}
}

// ExactlyOnce implements [broker.Transactional].
func (b exactWire) ExactlyOnce() bool { return true }

func (b exactWire) conn() *conn { return &conn{w: b.w, p: b.p} }

// slotOf is what an id says of member and slot: what it says of the member's name is by chance.
func slotOf(id string) string {
	_, slot, _ := strings.Cut(id, "-")
	return slot
}

func (w *world) transactions(id string) *transactions {
	if w.slots[id] == nil {
		w.slots[id] = &transactions{}
	}
	return w.slots[id]
}

// Transact fences who has the id open, and reads its mark in the same moment.
func (b exactWire) Transact(ctx context.Context, id string) (broker.Transactor, broker.Mark, error) {
	id = slotOf(id)
	t := &transactor{b: b, id: id}
	mark, err := ask(ctx, b.conn(), opens, 1, id, func() (broker.Mark, error) {
		if b.w.away[0] || b.w.hushed[0] {
			return broker.Mark{}, errNoService
		}
		of := b.w.transactions(id)
		of.epoch++
		t.epoch = of.epoch
		return of.mark, nil
	})
	if err != nil {
		return nil, broker.Mark{}, broker.Scoped(broker.Unavailable, broker.ScopeBroker, err)
	}
	return t, mark, nil
}

// Peek reads the mark of an id, and fences nobody.
func (b exactWire) Peek(ctx context.Context, id string) (broker.Mark, error) {
	id = slotOf(id)
	return ask(ctx, b.conn(), peek, 1, id, func() (broker.Mark, error) { return b.w.transactions(id).mark, nil })
}

// transactor is a process's, of an id that it has opened.
type transactor struct {
	b      exactWire
	id     string
	epoch  int
	ran    bool // its last transaction was decided, whether it was answered or not
	failed bool
}

var errFenced = broker.Scoped(broker.Unavailable, broker.ScopeRow, errors.New("another has opened the id"))

// sending is a transaction, as what is said of it.
type sending struct {
	id   string
	mark broker.Mark
	seqs []int64
}

// Publish stores all messages and the mark, or nothing. Its commit may come about late, unless
// the id is opened before.
func (t *transactor) Publish(ctx context.Context, mark broker.Mark, messages []broker.Message) (err error) {
	if t.failed {
		return errFenced
	}
	defer func() { t.failed = err != nil }()
	of := sending{id: t.id, mark: mark}
	for _, m := range messages {
		of.seqs = append(of.seqs, t.b.w.seqOf[m.ID])
	}
	t.b.w.sends(t.b.p, of.seqs)
	t.ran = false
	var failed error
	ran, err := ask(ctx, t.b.conn(), transact, 1, of, func() (bool, error) {
		t.ran, failed = true, t.commit(of, messages)
		return true, nil
	})
	switch {
	case ran:
		return failed
	case errors.Is(err, errRefused) && !t.ran:
		return broker.Scoped(broker.Unavailable, broker.ScopeBroker, err)
	}
	return fmt.Errorf("%w: %w", broker.ErrUndecided, err)
}

// sends sees what is handed to the broker.
func (w *world) sends(p *process, seqs []int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !p.killed {
		w.sendable(&call{name: name{proc: p.number}, seqs: seqs})
	}
}

// commit is where a transaction is committed, unless its id was opened meanwhile, or one of
// its messages isn't taken.
func (t *transactor) commit(s sending, messages []broker.Message) error {
	w, of := t.b.w, t.b.w.transactions(t.id)
	w.mu.Lock()
	defer w.mu.Unlock()
	if of.epoch != t.epoch || s.mark.N <= of.mark.N {
		return errFenced
	}
	failed := map[int]error{}
	if slices.ContainsFunc(s.seqs, func(seq int64) bool { return w.rows[seq].poison != "" }) {
		if !t.b.p.killed { // or it never got this far
			w.crashes++
			w.crash(t.b.p)
		}
		return errFenced
	}
	for i, seq := range s.seqs {
		if err := w.refusal(w.rows[seq]); err != nil {
			failed[i] = err
		}
	}
	if len(failed) == 0 {
		for i, m := range messages {
			w.arrives(m, w.rows[s.seqs[i]])
		}
		of.mark = s.mark
		return nil
	}
	for i := range messages {
		if failed[i] == nil {
			failed[i] = broker.ErrTakenBack
		}
	}
	return &broker.PublishError{Failed: failed}
}

// refusal is why the broker doesn't take a row now; nil: it does. The lock is held.
func (w *world) refusal(r *row) error {
	switch {
	case w.away[0] || w.hushed[0]:
		return errNoService
	case w.away[r.topic] || w.hushed[r.topic]:
		return errNoLeader
	case r.picky > 0:
		r.picky--
		r.failures++
		return errNotNow
	}
	return nil
}

// Close implements [broker.Transactor].
func (t *transactor) Close() {}

// transacted is the first seed of schedules in which the relays publish in transactions.
const transacted = 3_000_000_000

// transacts makes it one of these: its processes lose their leases and live on, and the
// database's server crashes.
func (p *plan) transacts(intN func(int) int) {
	if p.backlog, p.prefix = false, true; p.poison != "deadly" { // what is never answered is an outage
		p.poison, p.poisons = "", 0
	}
	p.exact, p.processes, p.acts = true, 1+intN(3), 100+intN(300)
	p.keys, p.rows, p.calls, p.batch = 1+intN(6), 6+intN(20), 1+intN(3), 1+intN(4)
	p.kills, p.crashes, p.silences, p.picky = intN(4), intN(3), intN(4), []int{0, 10, 40}[intN(3)]
}

// spoils has the broker refuse a row for a while, or nobody be able to send it. An outbox
// row's CloudEvent is what can't be sent.
func (w *world) spoils(r *row) (cloudEvent string) {
	if w.plan.picky == 0 {
		return ""
	}
	switch dice := int((w.plan.seed*2_654_435_761 + uint64(w.ids)*40_503) >> 7 % 100); {
	case dice < w.plan.picky/4:
		r.unfit = true
		return "no JSON"
	case dice < w.plan.picky:
		r.picky = 1 + w.ids%2
	}
	return ""
}

// silent is a process that gets no answers for a while, longer than its lease perhaps.
type silent struct {
	process, acts int
	reaps         bool
}

// silence has a process get no answers, or lets it go on; it is 0 if all get theirs. It is often
// one that has a transaction on its way; and once another is about to end its member, that one,
// so that it goes on beside its reap.
func (d *director) silence(statements []*statement) (process int) {
	s := &d.silent
	if s.acts--; s.acts > 0 {
		reaper := slices.IndexFunc(statements, func(by *statement) bool { return by.kind == string(relaytest.Finish) && by.proc != s.process })
		if reaper >= 0 && !s.reaps {
			*s = silent{statements[reaper].proc, 10 + d.random.IntN(60), true}
		}
		return s.process
	}
	if d.silences >= d.w.plan.silences || len(statements) == 0 {
		return 0
	}
	of := statements[d.random.IntN(len(statements))]
	chance := 1
	if of.kind == string(opens) || of.kind == string(transact) {
		chance = 15
	}
	if !d.chance(chance) {
		return 0
	}
	d.silences++
	*s = silent{of.proc, 10 + d.random.IntN(60), false}
	return s.process
}

// breaks has the database's server crash: what wasn't flushed is lost, and memberships with it.
func (d *director) breaks() bool {
	if d.crashes >= d.w.plan.crashes || !d.chance(2) {
		return false
	}
	d.crashes++
	d.do(act{verb: restart})
	return true
}
