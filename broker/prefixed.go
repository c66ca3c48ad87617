package broker

import (
	"context"
	"errors"
	"fmt"
)

// Prefixed is b with every topic and every consumer group under prefix: two
// brokers for the price of one connection. Closing it doesn't close b.
func Prefixed(b Broker, prefix string) Broker {
	if prefix == "" {
		return b
	}
	return prefixed{Broker: b, prefix: prefix}
}

// prefixed is no pointer: two of one broker and one prefix are equal.
type prefixed struct {
	Broker
	prefix string
}

func (p prefixed) Publish(ctx context.Context, messages []Message) error {
	return p.Broker.Publish(ctx, p.renamed(messages))
}

func (p prefixed) renamed(messages []Message) []Message {
	renamed := make([]Message, len(messages))
	for i, m := range messages {
		m.Topic = p.prefix + m.Topic
		renamed[i] = m
	}
	return renamed
}

func (p prefixed) EnsureTopics(ctx context.Context, topics ...string) error {
	renamed := make([]string, len(topics))
	for i, t := range topics {
		renamed[i] = p.prefix + t
	}
	return p.Broker.EnsureTopics(ctx, renamed...)
}

// Deliveries keep the prefix in their topic, as the broker has it.
func (p prefixed) Consume(ctx context.Context, topic, group string) (Consumer, error) {
	return p.Broker.Consume(ctx, p.prefix+topic, p.prefix+group)
}

func (p prefixed) Capabilities() Capabilities {
	c := p.Broker.Capabilities()
	c.TopicPrefix += p.prefix
	return c
}

// MaxMessage implements [Limiting].
func (p prefixed) MaxMessage() int {
	if b, ok := p.Broker.(Limiting); ok {
		return b.MaxMessage()
	}
	return 0
}

// Cluster implements [Clustered].
func (p prefixed) Cluster() string {
	if b, ok := p.Broker.(Clustered); ok {
		return b.Cluster()
	}
	return ""
}

// ExactlyOnce implements [Transactional].
func (p prefixed) ExactlyOnce() bool {
	b, ok := p.Broker.(Transactional)
	return ok && b.ExactlyOnce()
}

// Transact implements [Transactional].
func (p prefixed) Transact(ctx context.Context, id string) (Transactor, Mark, error) {
	b, ok := p.Broker.(Transactional)
	if !ok {
		return nil, Mark{}, Scoped(Permanent, ScopeBroker, fmt.Errorf("the broker has no transactions: %w", errors.ErrUnsupported))
	}
	t, mark, err := b.Transact(ctx, p.prefix+id)
	if err != nil {
		return nil, Mark{}, err
	}
	return prefixing{t, p}, mark, nil
}

// prefixing is a transactor of a broker under a prefix.
type prefixing struct {
	Transactor
	prefixed prefixed
}

func (p prefixing) Publish(ctx context.Context, mark Mark, messages []Message) error {
	return p.Transactor.Publish(ctx, mark, p.prefixed.renamed(messages))
}

func (p prefixed) Close(context.Context) error { return nil }
