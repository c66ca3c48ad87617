package relay

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/apart"
	"github.com/waybill-go/waybill/outbox"
)

// patience is for how long a call of the broker may go on after its context has ended,
// before it is walked away from.
const patience = 5 * time.Second

var errHanging = broker.Classify(broker.Unknown, errors.New("the broker's adapter did not return when its time was up"))

// call is a claim on its way to the broker.
type call struct {
	l    *lane
	life *membership
	f    *flight
	rows []Claimed
	errs map[int]error // by index of rows; a row that isn't there is stored
	// panic: what the adapter panicked with; hanging: it was walked away from.
	panic   error
	hanging bool
	// undecided are the indexes of rows whose transaction may have been committed.
	undecided []int
}

// publish hands the rows to the broker, and returns when all are answered, or not sent
// (errUnsent), or the call is walked away from.
func (c *call) publish() {
	c.errs = map[int]error{}
	messages, sendable := c.messages()
	ctx, cancel := context.WithTimeout(c.life.ctx, c.l.r.cfg.Outbox.PublishTimeout)
	defer cancel()
	var last time.Duration
	for first := true; len(sendable) > 0; first = false {
		wave, rest := c.wave(sendable)
		deadline, _ := ctx.Deadline()
		// What is begun too late would end in the middle, with an outcome that nobody
		// knows; what isn't begun is handed back and costs nothing.
		late := ctx.Err() != nil || !first && time.Until(deadline) < 2*last
		if late || c.panic != nil || c.hanging || !c.l.member.relies(c.life, time.Now()) {
			c.unsent(sendable)
			return
		}
		begin := time.Now()
		c.send(ctx, messages, wave)
		last = time.Since(begin)
		sendable = rest
	}
}

// messages are those of all rows; sendable the indexes of those that can be sent.
func (c *call) messages() (messages []broker.Message, sendable []int) {
	messages = make([]broker.Message, len(c.rows))
	for i := range c.rows {
		var err error
		if messages[i], err = messageOf(&c.rows[i]); err != nil {
			c.errs[i] = broker.Scoped(broker.Permanent, broker.ScopeRow, err)
			continue
		}
		c.l.stamp(&messages[i])
		sendable = append(sendable, i)
	}
	return messages, sendable
}

// wave are the rows that one call of the broker may hold: all, if it says that it
// stores of each key a leading run and nothing behind [NOPREFIX]. Otherwise the next one
// of each key; rows behind one that wasn't stored are not sent.
func (c *call) wave(sendable []int) (wave, rest []int) {
	prefix := c.f.slot != nil || c.l.Broker.Capabilities().Prefix
	if prefix && len(c.errs) == 0 {
		return sendable, nil
	}
	broken, in := map[int64]int{}, map[int64]bool{} // of each key the first row that failed
	for i := range c.errs {
		if at, ok := broken[c.rows[i].KeyHash]; !ok || i < at {
			broken[c.rows[i].KeyHash] = i
		}
	}
	for _, i := range sendable {
		key := c.rows[i].KeyHash
		at, failed := broken[key]
		switch {
		case failed && at < i: // one that can't be sent stops none that is before it
			c.errs[i] = errUnsent
		case in[key] && !prefix:
			rest = append(rest, i)
		default:
			in[key] = true
			wave = append(wave, i)
		}
	}
	return wave, rest
}

func (c *call) unsent(indexes []int) {
	for _, i := range indexes {
		if c.errs[i] == nil {
			c.errs[i] = errUnsent
		}
	}
}

// send is one call of the adapter, on a goroutine of its own: one that ignores its
// context must not keep the lane. What it still sends are copies, in order.
func (c *call) send(ctx context.Context, messages []broker.Message, wave []int) {
	if len(wave) == 0 {
		return
	}
	out := make([]broker.Message, len(wave))
	for n, i := range wave {
		out[n] = messages[i]
	}
	spans := c.l.publishing(ctx, c.rows, wave, out)
	answered := make(chan error, 1)
	publish := c.l.Broker.Publish
	if c.f.slot != nil {
		publish = c.publisher(wave)
	}
	go func() {
		var err error = &panicError{value: apart.ErrEnded} // unless it returns
		defer func() {
			if v := recover(); v != nil {
				err = &panicError{value: fmt.Sprintf("%v\n%s", v, debug.Stack())}
			}
			answered <- err
		}()
		err = publish(ctx, out)
	}()
	returned, err := c.await(ctx, answered)
	if !returned {
		c.hanging = true
		err = errHanging
		go c.l.returns(answered)
	}
	if panicked, ok := errors.AsType[*panicError](err); ok {
		c.panic = panicked
	}
	if c.f.slot != nil && err != nil {
		c.transacted(wave, err)
	}
	c.take(wave, err)
	spans.end(wave, c.errs)
}

// await waits for the adapter for as long as its context runs, and a little longer;
// not any longer if the relay is stopped hard.
func (c *call) await(ctx context.Context, answered <-chan error) (returned bool, err error) {
	select {
	case err = <-answered:
		return true, err
	case <-ctx.Done():
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err = <-answered:
		return true, err
	case <-c.l.r.ended():
	case <-timer.C:
	}
	return false, nil
}

// returns waits for a call that was walked away from: if it has gone well, the broker answers.
func (l *lane) returns(answered <-chan error) {
	if err := <-answered; err == nil && l.health.answered() {
		l.r.keeper.hurry()
		l.wake.ring()
	}
}

// take notes what the adapter says of each row of a wave.
func (c *call) take(wave []int, err error) {
	if err == nil {
		return
	}
	partial, ok := errors.AsType[*broker.PublishError](err)
	for n, i := range wave {
		if !ok {
			c.errs[i] = err
		} else if e := partial.Failed[n]; e != nil {
			c.errs[i] = e
		}
	}
}

// stamp writes the headers that are not the row's.
func (l *lane) stamp(m *broker.Message) {
	if p := l.promised.Load(); p != nil {
		p.WriteHeaders(m.Headers)
	}
	if !l.External && slices.Contains(l.r.cfg.Private, m.Headers["type"]) {
		outbox.MarkPrivate(m.Headers)
	}
}
