package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/IBM/sarama"

	"github.com/waybill-go/waybill/broker"
)

// fail settles message i. What is permanent is about the message itself.
func (c *call) fail(i int, class broker.Class, err error) {
	c.records[i].state = failed
	if c.failed == nil {
		c.failed = map[int]error{}
	}
	scope := broker.ScopeRow
	if class != broker.Permanent {
		scope = scopeOf(err)
	}
	c.failed[i] = broker.Scoped(class, scope, err)
}

// abandon fails what is not settled yet, and of which nothing was sent: no server
// answered, or none lets us in. Unless ctx is done: then that isn't known.
func (c *call) abandon(ctx context.Context, err error) {
	scope := broker.ScopeBroker
	if ctx.Err() != nil {
		scope = broker.ScopeUnknown
	}
	for i := range c.records {
		if c.records[i].state == waiting {
			c.fail(i, broker.Unavailable, broker.Scoped(broker.Unavailable, scope, err))
		}
	}
}

// giveUp settles what is not stored: all of it, or only what is not in doubt.
func (c *call) giveUp(why error, all bool) {
	for _, l := range c.lanes {
		b, scope := l.batch, broker.ScopeUnknown
		if b != nil {
			scope = scopeOf(b.err)
		}
		for _, i := range l.queue {
			c.fail(i, broker.Unavailable, broker.Scoped(broker.Unavailable, scope, why))
		}
		l.queue = nil
		if b == nil || b.open && !all {
			continue
		}
		if !errors.Is(b.err, why) {
			b.err = errors.Join(why, b.err)
		}
		switch {
		case b.open:
			c.end(l, broker.Unknown)
		case b.sent:
			c.end(l, broker.Transient)
		default:
			c.end(l, broker.Unavailable)
		}
	}
}

// refuse fails the messages of a topic that Kafka doesn't know or give.
func (c *call) refuse(topic string, code sarama.KError) {
	err := fmt.Errorf("kafka: topic %s: %w", topic, code)
	if code == sarama.ErrUnknownTopicOrPartition {
		err = fmt.Errorf("kafka: topic %s doesn't exist: create it, or let EnsureTopics do so: %w", topic, code)
	}
	for i := range c.records {
		if c.records[i].state == waiting && c.messages[i].Topic == topic {
			c.fail(i, broker.Transient, broker.Scoped(broker.Transient, broker.ScopeTopic, err))
		}
	}
}
