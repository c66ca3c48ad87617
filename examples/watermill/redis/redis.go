// Package redis is Redis Streams as a broker of Waybill, through Watermill's own
// publisher and subscriber: a file to copy and to change.
package redis

import (
	"cmp"
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/watermill"
)

// Config says where Redis is. It keeps what it acknowledged only with `appendonly
// yes` and `appendfsync always`.
type Config struct {
	URL string `yaml:"url"` // As in redis://127.0.0.1:6379. Required.
	// Subscriptions is how many messages a consumer has out at a time. Defaults to 16.
	Subscriptions int `yaml:"subscriptions"`
	// MaxIdle is how long a message may be out until it is given to somebody else:
	// longer than a handler takes, and so long does what a killed process had out
	// wait. Defaults to 60 s.
	MaxIdle time.Duration `yaml:"max_idle"`
}

// FromSettings opens a broker from a configuration file.
func FromSettings(_ context.Context, s broker.Settings) (broker.Broker, error) {
	var c Config
	if err := s.Decode(&c); err != nil {
		return nil, err
	}
	return Open(c)
}

// Broker is Redis.
type Broker struct {
	*watermill.Broker
	publisher message.Publisher
}

// Open makes a broker. It connects when it is used.
func Open(c Config) (*Broker, error) {
	options, err := redis.ParseURL(c.URL)
	if err != nil {
		return nil, err
	}
	c.Subscriptions = cmp.Or(c.Subscriptions, 16)
	// The client would try again by itself, and then the last of its errors does not
	// tell whether an earlier try arrived.
	options.MaxRetries = -1
	options.ContextTimeoutEnabled = true
	options.PoolSize = c.Subscriptions + 8 // each waits on a connection of its own
	// No MAXLEN: it drops what nobody has read yet.
	publisher, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: redis.NewClient(options)}, nil)
	if err != nil {
		return nil, err
	}
	b, err := watermill.New(watermill.Config{
		Publisher: publisher,
		Subscriber: func(group string) (message.Subscriber, error) {
			return redisstream.NewSubscriber(redisstream.SubscriberConfig{
				Client:        redis.NewClient(options), // the subscriber closes it
				ConsumerGroup: group,
				MaxIdleTime:   c.MaxIdle,
				ClaimInterval: time.Second,
				// Without it a subscriber that never got a message can't be closed.
				DisableIndefiniteInitialBlock: true,
			}, nil)
		},
		// No KeyOrder: what a member had out waits for MaxIdle, and what is later goes
		// on. No Prefix: a write that was given up may still arrive.
		Capabilities:  broker.Capabilities{Groups: true, Redelivery: true, Durable: true},
		Classify:      classify,
		Subscriptions: c.Subscriptions,
	})
	if err != nil {
		return nil, errors.Join(err, publisher.Close())
	}
	return &Broker{b, publisher}, nil
}

// classify tells what was not handed over, and what Redis refused, from what it
// may have stored. All but a topic that is a key of another kind would be said of
// any message.
func classify(err error) (broker.Class, broker.Scope) {
	var dial *net.OpError
	var answer redis.Error
	switch {
	case errors.As(err, &dial) && dial.Op == "dial":
		return broker.Unavailable, broker.ScopeBroker
	case errors.As(err, &answer) && strings.HasPrefix(answer.Error(), "LOADING"):
		return broker.Unavailable, broker.ScopeBroker
	case errors.As(err, &answer) && strings.HasPrefix(answer.Error(), "WRONGTYPE"):
		return broker.Transient, broker.ScopeTopic
	case errors.As(err, &answer): // OOM, MISCONF, READONLY …
		return broker.Transient, broker.ScopeBroker
	}
	return broker.Unknown, broker.ScopeUnknown
}

// Close closes the publisher, too.
func (b *Broker) Close(ctx context.Context) error {
	return errors.Join(b.Broker.Close(ctx), b.publisher.Close())
}
