// Package rabbitmq is RabbitMQ as a broker of Waybill, through Watermill's own
// publisher and subscriber: a file to copy and to change.
//
// A topic is a fanout exchange, and a group of it a queue. Both are durable, and
// publishing waits for the broker's confirm. The publisher doesn't hear of messages
// that no queue takes, as it ignores what a broker returns; so the broker is made to
// refuse them. Each exchange passes them on to [Unroutable], and that has a queue
// that takes nothing and says so.
package rabbitmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/waybill-go/waybill/broker"
	wm "github.com/waybill-go/waybill/broker/watermill"
)

// Unroutable is the exchange, and its queue, where messages end that no queue takes.
const Unroutable = "waybill.unroutable"

// Config says where RabbitMQ is.
type Config struct {
	URL string `yaml:"url"` // As in amqp://guest:guest@127.0.0.1:5672/. Required.
	// Subscriptions is how many messages a consumer has out at a time. Defaults to 16,
	// and to 1 if Ordered.
	Subscriptions int `yaml:"subscriptions"`
	// Ordered gives each key's messages in order: one member of a group receives, one
	// message at a time, and the others wait to take its place. A queue is either made
	// so or not.
	Ordered bool `yaml:"ordered"`
}

// FromSettings opens a broker from a configuration file.
func FromSettings(ctx context.Context, s broker.Settings) (broker.Broker, error) {
	var c Config
	if err := s.Decode(&c); err != nil {
		return nil, err
	}
	return Open(ctx, c)
}

// Broker is RabbitMQ.
type Broker struct {
	*wm.Broker
	conf      wmamqp.Config
	publisher message.Publisher
}

// Open connects, and declares what refuses unroutable messages.
func Open(_ context.Context, c Config) (*Broker, error) {
	if c.Ordered && c.Subscriptions > 1 {
		return nil, fmt.Errorf("rabbitmq: ordered goes with one subscription, and subscriptions is %d: leave one of them out", c.Subscriptions)
	}
	if c.Ordered {
		c.Subscriptions = 1
	}
	c.Subscriptions = cmp.Or(c.Subscriptions, 16)
	conf := wmamqp.NewDurablePubSubConfig(c.URL, nil)
	conf.Marshaler = wmamqp.DefaultMarshaler{PostprocessPublishing: func(p amqp.Publishing) amqp.Publishing {
		p.MessageId, _ = p.Headers[wmamqp.DefaultMessageUUIDHeaderKey].(string)
		p.ContentType, _ = p.Headers["content-type"].(string)
		return p
	}}
	conf.Publish.ConfirmDelivery = true
	// With a pool of channels, the publisher of v3.0.0 loses one with each message that
	// it can't send while the broker is away, and hangs when none is left.
	conf.Publish.ChannelPoolSize = 0
	conf.Exchange.Arguments = amqp.Table{"alternate-exchange": Unroutable}
	if c.Ordered {
		conf.Queue.Arguments = amqp.Table{amqp.SingleActiveConsumerArg: true}
	}
	conf.Connection.Reconnect = &wmamqp.ReconnectConfig{
		BackoffInitialInterval: 100 * time.Millisecond, BackoffMultiplier: 1.5, BackoffMaxInterval: 2 * time.Second,
	}
	b := &Broker{conf: conf}
	if err := b.declare(func(channel *amqp.Channel) error {
		if err := channel.ExchangeDeclare(Unroutable, amqp.ExchangeFanout, true, false, false, false, nil); err != nil {
			return err
		}
		nothing := amqp.Table{amqp.QueueMaxLenArg: 0, amqp.QueueOverflowArg: amqp.QueueOverflowRejectPublish}
		if _, err := channel.QueueDeclare(Unroutable, true, false, false, false, nothing); err != nil {
			return err
		}
		return channel.QueueBind(Unroutable, "", Unroutable, false, nil)
	}); err != nil {
		return nil, err
	}
	var err error
	if b.publisher, err = wmamqp.NewPublisher(conf, watermill.NopLogger{}); err != nil {
		return nil, err
	}
	b.Broker, err = wm.New(wm.Config{
		Publisher: b.publisher,
		Subscriber: func(group string) (message.Subscriber, error) {
			return wmamqp.NewSubscriber(b.of(group), watermill.NopLogger{})
		},
		EnsureTopics: b.topics,
		Capabilities: broker.Capabilities{KeyOrder: c.Ordered, Groups: true, Redelivery: true, Durable: true},
		Classify:     classify, Subscriptions: c.Subscriptions,
	})
	if err != nil {
		return nil, errors.Join(err, b.publisher.Close())
	}
	return b, nil
}

func (b *Broker) of(group string) wmamqp.Config {
	conf := b.conf
	conf.Queue.GenerateName = wmamqp.GenerateQueueNameTopicNameWithSuffix(group)
	return conf
}

// declare calls do with a channel of its own.
func (b *Broker) declare(do func(*amqp.Channel) error) (err error) {
	connection, err := amqp.Dial(b.conf.Connection.AmqpURI)
	if err != nil {
		return fmt.Errorf("rabbitmq: %w", err)
	}
	defer func() { err = errors.Join(err, connection.Close()) }()
	channel, err := connection.Channel()
	if err != nil {
		return fmt.Errorf("rabbitmq: %w", err)
	}
	if err := do(channel); err != nil {
		return fmt.Errorf("rabbitmq: %w", err)
	}
	return nil
}

// topics declares the exchanges. Until a group has a queue there, they take nothing.
func (b *Broker) topics(_ context.Context, topics ...string) error {
	return b.declare(func(channel *amqp.Channel) error {
		for _, topic := range topics {
			if err := b.conf.TopologyBuilder.ExchangeDeclare(channel, topic, b.conf); err != nil {
				return err
			}
		}
		return nil
	})
}

// Declare creates the queue of a group of topic, which gets what is published from
// then on. Consume does so, too; what has to be there for a group that comes later is
// declared before.
func (b *Broker) Declare(topic, group string) error {
	conf := b.of(group)
	return b.declare(func(channel *amqp.Channel) error {
		return conf.TopologyBuilder.BuildTopology(channel, wmamqp.BuildTopologyParams{
			Topic: topic, QueueName: conf.Queue.GenerateName(topic), ExchangeName: topic,
		}, conf, watermill.NopLogger{})
	})
}

// classify goes by the texts of the publisher's errors, as it has no values for them.
func classify(err error) (broker.Class, broker.Scope) {
	var refused *amqp.Error
	switch text := err.Error(); {
	case strings.HasPrefix(text, "not connected to AMQP"), strings.HasPrefix(text, "cannot open channel"):
		return broker.Unavailable, broker.ScopeBroker
	case errors.As(err, &refused) && refused.Server && (refused.Code == amqp.AccessRefused || refused.Code == amqp.NotFound || refused.Code == amqp.PreconditionFailed):
		return broker.Transient, broker.ScopeTopic
	}
	// So is what was not confirmed: the publisher doesn't say whether the broker
	// refused it or the connection broke.
	return broker.Unknown, broker.ScopeUnknown
}

// Close closes the publisher, too.
func (b *Broker) Close(ctx context.Context) error {
	return errors.Join(b.Broker.Close(ctx), b.publisher.Close())
}
