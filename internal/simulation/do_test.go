package simulation

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/waybill-go/waybill/outbox"
)

// do is an act of the schedule. One that can't happen now is left out.
func (w *world) do(a act) {
	if w.act(a) {
		w.acts = append(w.acts, a)
		w.quiet()
	}
}

// act has something happen; false if it can't.
func (w *world) act(a act) bool {
	switch a.verb {
	case answer, run, refuse, lose, late:
		return w.onStatement(a)
	case store, mumble, reject, unfit, ignore, reply, drop, hang:
		return w.onCall(a)
	case begin, insert, commit, rollback:
		return w.onUnit(a)
	case skip, retry, hold:
		return w.onRow(a)
	case start, kill, stop:
		return w.onProcess(a)
	case pass:
		w.say("%v", a)
		time.Sleep(time.Duration(a.of.n) * time.Millisecond) //nolint:forbidigo // in a bubble
	case away, hush, back:
		w.mu.Lock()
		defer w.mu.Unlock()
		w.say("%v", a)
		w.away[a.of.n], w.hushed[a.of.n] = a.verb == away, a.verb == hush
	case restart:
		w.say("%v", a)
		w.store.Crash()
	}
	return true
}

func (w *world) onStatement(a act) bool {
	s := w.statement(a.of, a.verb == late)
	if s == nil || a.verb == run && s.ran {
		return false
	}
	w.say("%v %+v", a, s.request)
	switch a.verb {
	case run:
		w.run(s)
		return true
	case refuse:
		w.finish(s, errRefused)
		return true
	case lose:
		w.finish(s, errLost)
		return true
	}
	if !s.ran {
		w.run(s)
	}
	if s.ran { // a reap in two halves hasn't
		w.finish(s, nil)
	}
	return true
}

func (w *world) onCall(a act) bool {
	for _, c := range w.outside() {
		if c.name == a.of {
			w.say("%v", a)
			w.call(c, a.verb)
			return true
		}
	}
	return false
}

func (w *world) onProcess(a act) bool {
	if a.verb == start {
		w.say("%v", a)
		w.start()
		return true
	}
	for _, p := range w.alive() {
		if p.number != a.of.proc {
			continue
		}
		if a.verb == stop {
			w.say("%v", a)
			w.stops(p)
			return true
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.kills++
		w.losses++
		w.crash(p)
		return true
	}
	return false
}

// stops has a process come to its end by itself.
func (w *world) stops(p *process) {
	w.mu.Lock()
	p.stopping = true
	w.mu.Unlock()
	go w.halt(p)
}

func (w *world) onUnit(a act) bool {
	u := w.units[a.of.proc-1]
	if a.verb == begin {
		if u == nil {
			w.units[a.of.proc-1] = &unit{tx: w.store.Begin()}
		}
		return u == nil
	}
	if u == nil || a.verb == insert && !w.insert(u, int(a.of.n)) {
		return false
	}
	w.say("%v", a)
	if a.verb == insert {
		return true
	}
	w.units[a.of.proc-1] = nil
	for key, by := range w.locks {
		if by == u {
			delete(w.locks, key)
		}
	}
	if a.verb == rollback {
		u.tx.Rollback()
		return true
	}
	pokes := u.tx.Commit()
	w.committed(u)
	if alive := w.alive(); len(alive) > 0 && a.of.n < 2 {
		if p := alive[int(a.of.n)%len(alive)]; w.isUp(p) {
			p.relay.Wake(pokes)
		}
	}
	return true
}

// committed notes the rows of a unit that are in the store now.
func (w *world) committed(u *unit) {
	w.mu.Lock()
	defer w.mu.Unlock()
	state := w.store.State()
	for _, r := range u.rows {
		queued := state.Queue[r.seq]
		w.takes("commit", func(m *machine) error {
			m.committed(queued)
			return nil
		})
		r.committed, w.numbers[r.key] = true, r.number
	}
}

func account(at int) string { return "account-" + strconv.Itoa(at) }

// insert writes a row of a key, if no other unit has the key's lock.
func (w *world) insert(u *unit, at int) bool {
	key := account(at)
	if by := w.locks[key]; by != nil && by != u {
		return false
	}
	w.locks[key] = u
	r := &row{key: key, number: w.numbers[key] + 1, topic: 1 + at%topics, part: outbox.PartitionOf(key, partitions)}
	for _, own := range u.rows {
		if own.key == key {
			r.number++
		}
	}
	w.ids++
	if at < w.plan.keys && w.ids > 2 && w.ids <= 2+w.plan.poisons {
		r.poison = w.plan.poison
	}
	r.id, r.body = fmt.Sprintf("m%d", w.ids), fmt.Appendf(nil, `{"data":{"number":%d}}`, r.number)
	seqs := u.tx.Insert(outbox.Row{
		ID: r.id, MessageID: r.id, TargetBroker: w.plan.target(r.topic), Stream: key, StreamCategory: "simulation::account", Topic: "topic-" + strconv.Itoa(r.topic),
		PartitionKey: key, MessageType: "Simulation.Moved.v1", AggregateType: "Account", AggregateID: key, AggregateVersion: r.number,
		Payload: r.body, ContentType: "application/json", OccurredAt: w.plan.epoch, Priority: (w.ids * 7 % 10) / 9, CloudEvent: w.spoils(r),
	})
	r.seq = seqs[0]
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rows[r.seq], w.seqOf[r.id] = r, r.seq
	u.rows = append(u.rows, r)
	return true
}

func (w *world) isUp(p *process) bool {
	select {
	case <-p.up:
		return true
	default:
		return false
	}
}

func (w *world) onRow(a act) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.rows[a.of.n]
	if r == nil || !r.committed {
		return false
	}
	before := w.store.State()
	queued, there := before.Queue[r.seq]
	done := false
	switch a.verb {
	case skip:
		if done = w.store.Skip(r.seq) == nil; done {
			r.skipped, r.moved = true, true
		}
	case retry:
		_, abandoned := before.Abandoned[r.seq]
		if done = w.store.Retry(r.seq); done && abandoned {
			r.moved = true
		}
	case hold:
		if done = there && !queued.Held && w.store.Hold(r.seq); done {
			r.moved = true
		}
	}
	if done {
		w.say("%v", a)
		after := w.store.State()
		w.takes(verbs[a.verb], func(m *machine) error { return m.operator(a.verb, r.seq, after) })
	}
	return done
}

// over says that nothing of any process runs any more.
func (w *world) over() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !slices.ContainsFunc(w.procs, func(p *process) bool {
		select {
		case <-p.ended:
			return false
		default:
			return true
		}
	})
}
