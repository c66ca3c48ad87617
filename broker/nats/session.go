package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// window is how many bytes are on their way to a member, or wait in it for
	// Receive, besides one message that is larger. A slow link has to carry as much
	// before anything else, such as the answer to the ping that tells that the server
	// is alive, and the server gives up on a client that takes longer than 10 s for
	// what it writes at once.
	window = 2 << 20
	// maxBatch is a number of messages that no window holds: bytes are the limit.
	maxBatch = window
	// probe is the size of a request that no message fits into.
	probe = 1
	// stale is for how many requests' time nothing comes of what was asked for, until it isn't
	// waited for any more.
	stale = 3
)

// session is the time for which a member receives through one subscription: on
// one connection, from one reset of the group's consumer to the next. It asks for
// more before all that it asked for has come, so that the link isn't idle. What
// comes after it ended is worth nothing, and isn't looked at.
type session struct {
	c     *consumer
	inbox string
	wake  chan struct{} // Capacity 1: something came.

	// Guarded by c.mu.
	due   int  // Bytes that were asked for and have not come.
	large bool // What comes next is larger than the window, and is asked for alone.
	lapse bool // A request ended without a message, since it was looked at last.
	last  time.Time
	over  bool
	err   error // Why it is over.

	moved time.Time // When a message came last, or was asked for.

	asked time.Time // Used by the pump alone.
}

// serve receives until ctx is done, the connection is replaced or something is
// wrong.
func (c *consumer) serve(ctx context.Context, reconnected <-chan struct{}) error {
	s := &session{c: c, inbox: c.b.nc.NewInbox(), wake: make(chan struct{}, 1), last: time.Now()}
	ctx, cancel := c.b.watch(ctx, "."+c.stream+"."+c.name, s.inbox)
	defer cancel()
	if c.standsBy() {
		if _, err := c.recover(ctx, reconnected); err != nil {
			return cause(ctx, err)
		}
	}
	c.mu.Lock()
	c.session = s
	c.mu.Unlock()
	sub, err := c.b.nc.Subscribe(s.inbox+".*", s.deliver)
	if err == nil {
		err = sub.SetPendingLimits(-1, -1)
	}
	if err != nil {
		return err
	}
	err = s.run(ctx, reconnected)
	s.end(nil)
	if failed := sub.Unsubscribe(); err == nil && c.b.nc.IsConnected() {
		err = failed
	}
	return cause(ctx, err)
}

// cause is err, or what the server refused, if that ended ctx.
func cause(ctx context.Context, err error) error {
	if why := context.Cause(ctx); errors.Is(why, nats.ErrPermissionViolation) {
		return why
	}
	return err
}

func (s *session) run(ctx context.Context, reconnected <-chan struct{}) error {
	look := time.NewTicker(s.c.b.timing.pull / 5)
	defer look.Stop()
	check := time.NewTicker(s.c.b.timing.check)
	defer check.Stop()
	var stalled uint64
	for {
		over, err := s.step(ctx, reconnected)
		if over || err != nil {
			return err
		}
		select {
		case <-s.wake:
		case <-look.C:
			s.c.tellHolder(ctx, reconnected)
		case <-check.C:
			if err = s.c.moved(ctx, reconnected); err != nil {
				return err
			}
			if stalled, err = s.c.behind(ctx, reconnected, stalled); err != nil {
				return err
			}
		case <-reconnected:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// step asks for more if there is room, and says whether the session is over.
func (s *session) step(ctx context.Context, reconnected <-chan struct{}) (over bool, err error) {
	c := s.c
	c.mu.Lock()
	lapsed, silent := s.lapse, time.Since(s.last)
	s.lapse = false
	over, err = s.over, s.err
	standsBy := c.tenure == nil
	c.mu.Unlock()
	switch {
	case over:
		return true, err
	case silent > c.b.timing.pull+c.b.timing.absence:
		return true, fmt.Errorf("no answer for %v", silent.Round(time.Second))
	case lapsed && standsBy:
		if reset, err := c.recover(ctx, reconnected); reset || err != nil {
			return true, err
		}
	}
	return false, s.ask()
}

// ask requests what fits. While nothing fits it sends a request that nothing fits
// into either: asking is what keeps a member's place.
func (s *session) ask() error {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.due > 0 && time.Since(s.moved) > stale*c.b.timing.pull {
		// All requests have ended at the server by now. What they left was counted wrongly, or
		// how they ended got lost: without this the member would send probes for ever.
		s.due, s.large = 0, false
	}
	r := pull{Batch: maxBatch, MaxBytes: window - s.due - c.readyBytes, Expires: c.b.timing.pull, Group: pinGroup}
	if c.tenure != nil {
		r.Pin = c.tenure.pin
	}
	switch {
	case s.over, r.Pin == "" && s.due > 0:
		return nil // Who stands by has one request there.
	case s.large && s.due == 0 && c.readyBytes == 0:
		r.Batch, r.MaxBytes = 1, 0
		s.due = window
	case !s.large && r.MaxBytes >= window/2:
		s.due += r.MaxBytes
	case r.Pin != "" && time.Since(s.asked) > c.b.timing.pull:
		r.Batch, r.MaxBytes = 1, probe
	default:
		return nil
	}
	s.asked = time.Now()
	if r.MaxBytes != probe {
		s.moved = s.asked
	}
	return s.send(r)
}

// pull is a request for messages.
type pull struct {
	Batch    int           `json:"batch"`
	MaxBytes int           `json:"max_bytes,omitempty"`
	Expires  time.Duration `json:"expires"`
	Group    string        `json:"group"`
	Pin      string        `json:"id,omitempty"`
}

func (s *session) send(r pull) error {
	request, err := json.Marshal(r)
	if err != nil {
		return err
	}
	subject := "$JS.API.CONSUMER.MSG.NEXT." + s.c.stream + "." + s.c.name
	// An answer names the request's size in this way.
	return s.c.b.nc.PublishRequest(subject, s.inbox+"."+strconv.Itoa(r.MaxBytes), request)
}

// deliver takes in what the server sends.
func (s *session) deliver(m *nats.Msg) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.over {
		return
	}
	s.last = time.Now()
	if status := m.Header.Get("Status"); status != "" && len(m.Data) == 0 {
		s.heed(status, m)
	} else {
		s.take(m)
	}
	s.nudge()
}

// nudge makes the pump look.
func (s *session) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// take keeps a message, and asks for a new start if one before it is missing. The
// lock is held.
func (s *session) take(m *nats.Msg) {
	pin := m.Header.Get(pinHeader)
	// The server counts without what it adds itself.
	s.due = max(s.due-m.Size()+len(pinHeader)+len(": \r\n")+len(pin), 0)
	if s.large {
		s.large, s.due = false, 0
	}
	s.c.well()
	s.moved = time.Now()
	if !s.c.take(m, pin) {
		s.finish(errGap)
	}
}

// heed takes note of how a request ended. The lock is held.
func (s *session) heed(status string, m *nats.Msg) {
	size, _ := strconv.Atoi(strings.TrimPrefix(m.Subject, s.inbox+"."))
	left, _ := strconv.Atoi(m.Header.Get("Nats-Pending-Bytes"))
	description := m.Header.Get("Description")
	tooSmall := status == "409" && strings.EqualFold(description, "message size exceeds maxbytes")
	switch {
	case status == "100":
	case status == "404", status == "408", tooSmall, status == "409" && strings.EqualFold(description, "batch completed"):
		s.c.well()
		switch size {
		case probe:
		case 0: // It was to bring a large one.
			s.large, s.due = false, 0
		default:
			s.due = max(s.due-left, 0)
			s.large = tooSmall && left == window
		}
		s.lapse = true
	case status == "423":
		s.c.lose()
		s.finish(nil)
	case status == "409" && strings.EqualFold(description, "consumer deleted"):
		s.finish(jetstream.ErrConsumerNotFound)
	case status == "503":
		s.finish(fmt.Errorf("the group's consumer doesn't answer: %w", nats.ErrNoResponders))
	default:
		s.finish(fmt.Errorf("the server refuses a request for messages: %s %s", status, description))
	}
}

// end ends the session: from here on nothing is taken in.
func (s *session) end(err error) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.finish(err)
}

// finish is end with the lock held. The first reason counts.
func (s *session) finish(err error) {
	if !s.over {
		s.over, s.err = true, err
	}
}
