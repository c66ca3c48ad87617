// Package watermill makes a broker of any Watermill publisher and subscriber, so
// that every Pub/Sub of Watermill can be used: AMQP, Redis Streams, Google Cloud
// Pub/Sub, SQL and others.
//
// A message is one Watermill message: ID is its UUID, Body its payload, Headers
// its metadata, to which Key is added under [KeyHeader]. What such a broker
// promises depends on the Pub/Sub and on how it was configured: it has the
// capabilities that Config gives it, and without any it promises nothing.
package watermill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/waybill-go/waybill/broker"
)

// KeyHeader is the metadata that holds Message.Key. A publisher that partitions
// has to be told of it, as watermill-kafka is by NewWithPartitioningMarshaler.
const KeyHeader = "waybill-key"

// CloudEventsPrefix stands before the attributes of a CloudEvent in a message's
// metadata. It is that of most bindings; Kafka's has another one, and an adapter of
// its own.
const CloudEventsPrefix = "ce-"

// ErrClosed is the error of a broker or a consumer that was closed.
var ErrClosed = errors.New("watermill: closed")

var _ broker.Broker = (*Broker)(nil)

// Config is a Pub/Sub and what is known of it.
type Config struct {
	// Publisher publishes. Whoever made it closes it, after the broker. Required.
	Publisher message.Publisher
	// Subscriber makes the subscriber of one member of a group. It is closed with
	// its consumer. Required for Consume.
	Subscriber func(group string) (message.Subscriber, error)
	// EnsureTopics creates topics that are missing. Defaults to nothing, as most
	// Pub/Subs create what is used.
	EnsureTopics func(ctx context.Context, topics ...string) error
	// Capabilities are what the Pub/Sub promises as it is configured. Defaults to
	// none.
	//
	// Messages of one key are handed to Publisher one after the other, each when
	// the one before it was accepted, and none behind a failure: Prefix holds if
	// Publisher returns after the answer and then sends nothing more. KeyOrder
	// also needs a subscriber that keeps the order, with one message of a key out
	// at a time.
	Capabilities broker.Capabilities
	// Concurrency is how many keys of a call are published at once. Defaults to 16.
	Concurrency int
	// Classify says what an error of Publisher means for the next attempt, and how
	// much fails together with the message. It may be called by several goroutines.
	// Defaults to [broker.ClassOf] and [broker.ScopeOf], by which most errors are
	// [broker.Transient] and of unknown scope: then a broker that is down costs each
	// message its attempts. Only what proves that nothing was handed over, such as a
	// connection refused, may be called [broker.Unavailable], and only what the
	// broker is known not to have stored may be called transient.
	Classify func(error) (broker.Class, broker.Scope)
	// Subscriptions is how often a consumer subscribes. Most subscribers hand out
	// the next message when the one before it is settled, so this is how many are
	// out at a time. More than 1 goes without KeyOrder, unless the Pub/Sub divides a
	// topic among them by key. Defaults to 1.
	Subscriptions int
	// Alive says whether the server is there and lets the program in; it is asked every
	// few seconds for each consumer, which then is [broker.Stateful]. Watermill's
	// subscribers don't say how they fare: without it, a consumer whose server is gone
	// looks like one for which there is nothing. Defaults to nothing.
	Alive func(ctx context.Context) error
}

// Broker is a Pub/Sub as a broker.
type Broker struct {
	conf Config

	mu        sync.Mutex
	closed    bool
	calls     sync.WaitGroup // Messages that Publisher has.
	consumers map[*consumer]struct{}
}

// New makes a broker of a Pub/Sub.
func New(conf Config) (*Broker, error) {
	var errs []error
	if conf.Publisher == nil {
		errs = append(errs, errors.New("watermill: Publisher is missing: give the message.Publisher to publish with"))
	}
	if conf.Concurrency < 0 {
		errs = append(errs, fmt.Errorf("watermill: Concurrency is %d: use 1 or more", conf.Concurrency))
	}
	if conf.Subscriptions < 0 {
		errs = append(errs, fmt.Errorf("watermill: Subscriptions is %d: use 1 or more", conf.Subscriptions))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	conf.Concurrency = cmp.Or(conf.Concurrency, 16)
	conf.Subscriptions = cmp.Or(conf.Subscriptions, 1)
	if conf.Classify == nil {
		conf.Classify = func(err error) (broker.Class, broker.Scope) { return broker.ClassOf(err), broker.ScopeOf(err) }
	}
	return &Broker{conf: conf, consumers: map[*consumer]struct{}{}}, nil
}

// Capabilities returns those of the Config.
func (b *Broker) Capabilities() broker.Capabilities { return b.conf.Capabilities }

// EnsureTopics calls Config.EnsureTopics.
func (b *Broker) EnsureTopics(ctx context.Context, topics ...string) error {
	if b.conf.EnsureTopics == nil || len(topics) == 0 {
		return nil
	}
	if err := b.conf.EnsureTopics(ctx, topics...); err != nil {
		return fmt.Errorf("watermill: topics: %w", err)
	}
	return nil
}

// Publish returns when Publisher has returned for each message, or when ctx is
// done: Watermill knows no context, so what Publisher has by then goes on, and
// is [broker.Unknown]. Class and scope of Publisher's errors are Config.Classify's.
func (b *Broker) Publish(ctx context.Context, messages []broker.Message) error {
	if len(messages) == 0 {
		return nil
	}
	c := newCall(ctx, b, messages)
	workers := min(b.conf.Concurrency, len(c.order))
	c.working = workers
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return broker.Scoped(broker.Unavailable, broker.ScopeBroker, ErrClosed)
	}
	b.calls.Add(workers)
	b.mu.Unlock()
	for range workers {
		go c.work()
	}
	select {
	case <-c.done:
	case <-ctx.Done():
	}
	return c.err()
}

// Close waits until Publisher has returned from every call, closes the consumers
// that are open, and waits for both as long as ctx allows.
func (b *Broker) Close(ctx context.Context) error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	var open []*consumer
	for c := range b.consumers {
		open = append(open, c)
	}
	b.mu.Unlock()
	var errs []error
	for _, c := range open {
		errs = append(errs, c.Close(ctx))
	}
	errs = append(errs, within(ctx, func() error {
		b.calls.Wait()
		return nil
	}))
	return errors.Join(errs...)
}

// within calls what knows no context, and leaves it behind when ctx is done.
func within(ctx context.Context, fn func() error) error {
	done := make(chan error, 1)
	go func() { done <- fn() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("watermill: %w", context.Cause(ctx))
	}
}
