package watermill

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/waybill-go/waybill/broker"
)

var errBehind = broker.Scoped(broker.Unavailable, broker.ScopeRow, errors.New("watermill: not sent: an earlier message of its key was not stored"))

// call is one call of Publish.
type call struct {
	broker   *Broker
	ctx      context.Context
	messages []broker.Message
	keys     map[string][]int // Messages by key.
	done     chan struct{}    // Closed when no worker is left.

	mu      sync.Mutex
	order   []string // Keys that no worker has taken.
	working int
	states  []state
	failed  map[int]error
	over    bool // Publish has returned.
}

type state int8

const (
	idle   state = iota // Publisher doesn't have it.
	handed              // It has.
	stored
)

func newCall(ctx context.Context, b *Broker, messages []broker.Message) *call {
	c := &call{
		broker: b, ctx: ctx, messages: messages, done: make(chan struct{}),
		keys: make(map[string][]int, len(messages)), states: make([]state, len(messages)), failed: map[int]error{},
	}
	for i, m := range messages {
		if c.keys[m.Key] == nil {
			c.order = append(c.order, m.Key)
		}
		c.keys[m.Key] = append(c.keys[m.Key], i)
	}
	return c
}

// work publishes key after key.
func (c *call) work() {
	defer c.broker.calls.Done()
	for {
		key, ok := c.take()
		if !ok {
			return
		}
		for n, i := range c.keys[key] {
			if !c.begin(i) {
				break
			}
			err := c.publish(c.messages[i])
			if !c.end(c.keys[key][n:], err) {
				break
			}
		}
	}
}

func (c *call) take() (key string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.order) == 0 || c.over || c.ctx.Err() != nil {
		if c.working--; c.working == 0 {
			close(c.done)
		}
		return "", false
	}
	key, c.order = c.order[0], c.order[1:]
	return key, true
}

// begin says whether message i may still be handed over. Once Publish has
// returned, none is.
func (c *call) begin(i int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over || c.ctx.Err() != nil {
		return false
	}
	c.states[i] = handed
	return true
}

// end settles the first of rest, and says whether the next one may follow.
func (c *call) end(rest []int, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return false
	}
	if err == nil {
		c.states[rest[0]] = stored
		return true
	}
	c.failed[rest[0]] = err
	for _, i := range rest[1:] {
		c.failed[i] = errBehind
	}
	return false
}

func (c *call) publish(m broker.Message) error {
	switch _, reserved := m.Headers[KeyHeader]; {
	case m.ID == "" || m.Topic == "" || m.Key == "":
		return broker.Scoped(broker.Permanent, broker.ScopeRow, fmt.Errorf("watermill: message %q needs an id, a topic and a key", m.ID))
	case reserved:
		return broker.Scoped(broker.Permanent, broker.ScopeRow, fmt.Errorf("watermill: message %q has the header %s, which is reserved", m.ID, KeyHeader))
	}
	out := message.NewMessageWithContext(c.ctx, m.ID, m.Body)
	maps.Copy(out.Metadata, m.NativeHeaders(CloudEventsPrefix))
	out.Metadata[KeyHeader] = m.Key
	if err := c.broker.conf.Publisher.Publish(m.Topic, out); err != nil {
		class, scope := c.broker.conf.Classify(err)
		return broker.Scoped(class, scope, fmt.Errorf("watermill: %w", err))
	}
	return nil
}

// err ends the call: what is not settled is unknown if Publisher has it.
func (c *call) err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	for i := range c.messages {
		if c.failed[i] != nil {
			continue
		}
		switch c.states[i] {
		case idle:
			c.failed[i] = broker.Classify(broker.Unavailable, context.Cause(c.ctx))
		case handed:
			c.failed[i] = broker.Classify(broker.Unknown, context.Cause(c.ctx))
		}
	}
	if len(c.failed) == 0 {
		return nil
	}
	return &broker.PublishError{Failed: c.failed}
}
