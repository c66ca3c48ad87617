package simulation

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/verdict"
)

var (
	errNotNow    = broker.Scoped(broker.Transient, broker.ScopeRow, errors.New("not now"))
	errTooLarge  = broker.Scoped(broker.Permanent, broker.ScopeRow, errors.New("too large"))
	errSilent    = broker.Classify(broker.Unknown, errors.New("no answer"))
	errHeldBack  = broker.Scoped(broker.Unavailable, broker.ScopeRow, errors.New("one before it failed"))
	errNoLeader  = broker.Scoped(broker.Transient, broker.ScopeTopic, errors.New("no leader"))
	errNoService = broker.Scoped(broker.Unavailable, broker.ScopeBroker, errors.New("connection refused"))
)

// call is one of the broker, whose messages are on their way.
type call struct {
	name

	p        *process
	messages []broker.Message
	seqs     []int64
	next     int
	said     []error // of the messages before next; nil: stored
	broken   map[string]bool
	began    time.Time
	tick     int
	hangs    bool
	mute     bool // it can't be answered to its end
	ghost    bool // nobody waits for it
	done     chan struct{}
	err      error
}

// wire is a process's connection to the broker.
type wire struct {
	w *world
	p *process
}

// Publish implements [broker.Publisher].
func (b *wire) Publish(ctx context.Context, messages []broker.Message) error {
	c := b.w.calling(b.p, messages)
	if c == nil {
		return errDead
	}
	select {
	case <-c.done:
		return c.err
	case <-b.p.dead:
		return errDead
	case <-ctx.Done():
	}
	if !b.w.cut(c) { // it ignores its context
		select {
		case <-c.done:
			return c.err
		case <-b.p.dead:
			return errDead
		}
	}
	return c.err
}

// calling notes a call; nil: the process is dead.
func (w *world) calling(p *process, messages []broker.Message) *call {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.killed {
		return nil
	}
	w.tick++
	w.called++
	c := &call{p: p, messages: messages, broken: map[string]bool{}, began: time.Now(), tick: w.tick, done: make(chan struct{})}
	for _, m := range messages {
		c.seqs = append(c.seqs, w.seqOf[m.ID])
	}
	c.name = name{proc: p.number, kind: "publish", n: c.seqs[0]}
	w.sendable(c)
	mine := map[token]bool{}
	for t, proc := range w.claimers {
		mine[t] = proc == p.number
	}
	w.takes("send", func(m *machine) error { return m.send(c.seqs, func(t token) bool { return mine[t] }) })
	w.calls = append(w.calls, c)
	return c
}

// cut ends a call whose time is up: nothing more of it is sent. It is false if it hangs.
func (w *world) cut(c *call) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.hangs {
		return false
	}
	w.returns(c, errSilent)
	return true
}

// returns ends a call; what has no answer yet gets err. The lock is held.
func (w *world) returns(c *call, err error) {
	failed := map[int]error{}
	unanswered := false
	var said []error
	for i := range c.messages {
		of := err
		if i < c.next {
			of = c.said[i]
		} else if c.broken[c.messages[i].Key] {
			of = errHeldBack
		}
		if of != nil {
			failed[i] = of
			unanswered = unanswered || broker.ClassOf(of) == broker.Unknown
		}
		said = append(said, of)
	}
	c.next, c.said = len(c.messages), said
	if len(failed) > 0 {
		c.err = &broker.PublishError{Failed: failed}
	}
	if unanswered {
		w.incidents = append(w.incidents, verdict.Incident{Kind: "unanswered call", PID: c.p.number, From: c.began, Until: time.Now()})
	}
	w.calls = slices.DeleteFunc(w.calls, func(other *call) bool { return other == c })
	w.answered(c)
}

// outside are the calls that are on the wire, in an order that doesn't depend on who came
// first.
func (w *world) outside() (all []*call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.calls {
		if !c.mute {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b *call) int {
		return cmp.Or(cmp.Compare(a.proc, b.proc), cmp.Compare(a.n, b.n), cmp.Compare(a.tick, b.tick))
	})
	return all
}

// call does what an act says to one.
func (w *world) call(c *call, v verb) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch v {
	case store:
		w.advance(c, nil)
	case mumble:
		w.advance(c, errMumbled)
	case reject:
		w.advance(c, errNotNow)
	case unfit:
		w.advance(c, errTooLarge)
	case ignore:
		w.advance(c, errSilent)
	case hang:
		c.hangs = true
		now := time.Now() // it is walked away from, whatever its answer is then
		w.incidents = append(w.incidents, verdict.Incident{Kind: "unanswered call", PID: c.p.number, From: c.began, Until: now.Add(10 * time.Second)})
		return
	case drop:
		if c.ghost {
			w.calls = slices.DeleteFunc(w.calls, func(other *call) bool { return other == c })
			return
		}
		w.returns(c, errSilent)
		close(c.done)
		return
	case reply:
		for c.next < len(c.messages) && slices.Contains(w.calls, c) && (c.ghost || !c.p.killed) {
			w.advance(c, nil)
		}
	}
	w.end(c)
}

// errMumbled says that a message is stored, and that nobody hears of it.
var errMumbled = broker.Classify(broker.Unknown, errors.New("no answer, though it is stored"))

// end has a call return of which all messages are decided. The lock is held.
func (w *world) end(c *call) {
	switch {
	case c.next < len(c.messages):
	case c.ghost:
		w.calls = slices.DeleteFunc(w.calls, func(other *call) bool { return other == c })
	case !c.hangs && slices.ContainsFunc(c.said, func(err error) bool { return errors.Is(err, errMumbled) || errors.Is(err, errSilent) }):
		c.mute = true // what has no answer is waited for
	default:
		w.returns(c, nil)
		close(c.done)
	}
}

// hearing is what a process knows of a topic: by ticks, its last silence and the end of the
// first call after that which was answered. model/breaker.pml has the rule.
type hearing struct{ unknown, known int }

// judgement is what a call said of a row.
type judgement struct {
	said     error
	answered bool // others of the topic were
	convicts bool // it was alone, and its topic was known to answer
}

// answered notes who was. The lock is held.
func (w *world) answered(c *call) {
	w.tick++
	keys := map[string]bool{}
	var answers, silences [topics + 1]bool
	for i, seq := range c.seqs {
		r := w.rows[seq]
		keys[r.key] = true
		switch said := c.said[i]; {
		case said == nil || errors.Is(said, errNotNow):
			answers[r.topic] = true
		case broker.ClassOf(said) == broker.Unknown, errors.Is(said, errNoLeader), errors.Is(said, errNoService):
			silences[r.topic] = true
		}
		if c.said[i] != nil && !errors.Is(c.said[i], errHeldBack) {
			r.failures++
			r.unfit = r.unfit || errors.Is(c.said[i], errTooLarge)
		}
	}
	for i, seq := range c.seqs {
		topic := w.rows[seq].topic
		h := c.p.topics[topic]
		c.p.last[seq] = judgement{c.said[i], answers[topic], len(keys) == 1 && h.known != 0 && h.known < c.tick}
	}
	for topic := range answers {
		h := &c.p.topics[topic]
		switch {
		case answers[topic]:
			if h.known == 0 && c.tick > h.unknown {
				h.known = w.tick
			}
		case silences[topic]:
			h.unknown, h.known = w.tick, 0
		}
	}
}

// advance decides about a call's next message. The lock is held.
func (w *world) advance(c *call, said error) {
	if c.next >= len(c.messages) {
		return
	}
	m, r := c.messages[c.next], w.rows[c.seqs[c.next]]
	down, silent := w.away[0] || w.away[r.topic], w.hushed[0] || w.hushed[r.topic]
	switch {
	case c.broken[m.Key]:
		said = errHeldBack
	case r.poison == "deadly" && c.ghost: // it never got this far
		w.calls = slices.DeleteFunc(w.calls, func(other *call) bool { return other == c })
		return
	case r.poison == "deadly":
		w.crashes++
		w.crash(c.p)
		return
	case r.poison == "mute", silent:
		said = errSilent
	case down && w.away[0]:
		said = errNoService
	case down:
		said = errNoLeader
	}
	if said != nil && w.plan.prefix { // others go on with the key
		c.broken[m.Key] = true
	}
	if said == nil || errors.Is(said, errMumbled) {
		w.arrives(m, r)
	}
	c.said = append(c.said, said)
	c.next++
}

// arrives has the broker store a message, for good. The lock is held.
func (w *world) arrives(m broker.Message, r *row) {
	if r.copies++; w.plan.exact && r.copies > 1 {
		w.theft("row %d is committed at the broker once more", r.seq)
	}
	w.stored = append(w.stored, verdict.Delivery{
		Topic: m.Topic, Partition: int32(r.part), Offset: int64(len(w.stored)), ID: m.ID, Key: m.Key, Body: m.Body,
	})
	w.say("the broker has row %d of %s", r.seq, m.Key)
}

// EnsureTopics implements [broker.Broker].
func (b *wire) EnsureTopics(context.Context, ...string) error { return nil }

// Consume implements [broker.Broker].
func (b *wire) Consume(context.Context, string, string) (broker.Consumer, error) {
	return nil, errors.ErrUnsupported
}

// Capabilities implements [broker.Broker].
func (b *wire) Capabilities() broker.Capabilities {
	return broker.Capabilities{Prefix: b.w.plan.prefix}
}

// Close implements [broker.Broker].
func (b *wire) Close(context.Context) error { return nil }
