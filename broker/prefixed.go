package broker

import "context"

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
	renamed := make([]Message, len(messages))
	for i, m := range messages {
		m.Topic = p.prefix + m.Topic
		renamed[i] = m
	}
	return p.Broker.Publish(ctx, renamed)
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

func (p prefixed) Close(context.Context) error { return nil }
