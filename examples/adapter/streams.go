// Package streams is an adapter of package broker for Redis Streams: the one that the
// guide to writing an adapter goes through. It is a topic per stream, and a consumer group
// of the stream per group.
package streams

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/waybill-go/waybill/broker"
)

// Config says which Redis it is.
type Config struct {
	URL string `yaml:"url"` // such as redis://127.0.0.1:6379. Required.
	// MaxIdle is for how long a message may be out before another member gets it. It must
	// be longer than a handler takes. Defaults to 1 min.
	MaxIdle time.Duration `yaml:"max_idle"`
}

// Broker is a Redis.
type Broker struct {
	client  *redis.Client
	maxIdle time.Duration
}

// FromSettings is the adapter's [broker.Opener].
func FromSettings(_ context.Context, s broker.Settings) (broker.Broker, error) {
	var c Config
	if err := s.Decode(&c); err != nil {
		return nil, err
	}
	return Open(c)
}

// Open doesn't wait for the server: what is opened reaches it when it can.
func Open(c Config) (*Broker, error) {
	options, err := redis.ParseURL(c.URL)
	var errs []error
	if err != nil {
		errs = append(errs, fmt.Errorf("streams: url: %w: write it as redis://host:port", err))
	}
	if c.MaxIdle < 0 {
		errs = append(errs, fmt.Errorf("streams: max_idle is %v: use more than a handler takes, or leave it out", c.MaxIdle))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if c.MaxIdle == 0 {
		c.MaxIdle = time.Minute
	}
	// A client that tries again by itself hides which of its tries arrived.
	options.MaxRetries, options.ContextTimeoutEnabled = -1, true
	return &Broker{redis.NewClient(options), c.MaxIdle}, nil
}

// Capabilities has no KeyOrder: while a message waits to be taken from one member, another
// one gets what is later. It has no Prefix: what was given up may still arrive.
func (b *Broker) Capabilities() broker.Capabilities {
	return broker.Capabilities{System: "redis", Groups: true, Redelivery: true, Durable: true}
}

// EnsureTopics does nothing: the first message creates its stream.
func (b *Broker) EnsureTopics(ctx context.Context, _ ...string) error { return ctx.Err() }

// Publish implements [broker.Publisher] with one round trip for all messages.
func (b *Broker) Publish(ctx context.Context, messages []broker.Message) error {
	if len(messages) == 0 {
		return nil
	}
	commands, err := b.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, m := range messages {
			pipe.XAdd(ctx, &redis.XAddArgs{Stream: m.Topic, Values: fields(m)})
		}
		return nil
	})
	if err == nil {
		return nil
	}
	failed := map[int]error{}
	for i, command := range commands {
		if err := command.Err(); err != nil {
			failed[i] = classify(err)
		}
	}
	if len(failed) == 0 { // There was no connection, and no command was tried.
		return classify(err)
	}
	return &broker.PublishError{Failed: failed}
}

// classify says what a failed XADD means for the next one.
func classify(err error) error {
	var answer redis.Error
	dial, isNet := errors.AsType[*net.OpError](err)
	switch {
	case isNet && dial.Op == "dial":
		return broker.Scoped(broker.Unavailable, broker.ScopeBroker, err)
	case !errors.As(err, &answer): // A connection that broke, or a context that is done: it may have arrived.
		return broker.Scoped(broker.Unknown, broker.ScopeUnknown, err)
	case strings.HasPrefix(answer.Error(), "LOADING"):
		return broker.Scoped(broker.Unavailable, broker.ScopeBroker, err)
	case strings.HasPrefix(answer.Error(), "WRONGTYPE"): // The topic's name is another thing's.
		return broker.Scoped(broker.Transient, broker.ScopeTopic, err)
	}
	return broker.Scoped(broker.Transient, broker.ScopeBroker, err) // OOM, MISCONF, READONLY …
}

// The fields of an entry.
const (
	fieldID, fieldKey, fieldBody = "id", "key", "body"
	header                       = "h:"
)

func fields(m broker.Message) []any {
	all := []any{fieldID, m.ID, fieldKey, m.Key, fieldBody, m.Body}
	for name, value := range m.NativeHeaders("ce_") {
		all = append(all, header+name, value)
	}
	return all
}

func delivery(topic string, entry redis.XMessage) broker.Delivery {
	d := broker.Delivery{Token: entry.ID, Message: broker.Message{Topic: topic, Headers: map[string]string{}}}
	for name, field := range entry.Values {
		value, _ := field.(string) // The client has strings only.
		switch {
		case name == fieldID:
			d.ID = value
		case name == fieldKey:
			d.Key = value
		case name == fieldBody:
			d.Body = []byte(value)
		case strings.HasPrefix(name, header):
			d.Headers[strings.TrimPrefix(name, header)] = value
		}
	}
	return d
}

// Consume implements [broker.Broker].
func (b *Broker) Consume(ctx context.Context, topic, group string) (broker.Consumer, error) {
	err := b.client.XGroupCreateMkStream(ctx, topic, group, "0").Err()
	if err != nil && !strings.HasPrefix(err.Error(), "BUSYGROUP") { // It is there already.
		return nil, fmt.Errorf("streams: group %s of %s: %w", group, topic, classify(err))
	}
	return &consumer{b: b, topic: topic, group: group, name: uuid.NewString(), out: map[string]bool{}}, nil
}

// Close closes the connections.
func (b *Broker) Close(context.Context) error { return b.client.Close() }
