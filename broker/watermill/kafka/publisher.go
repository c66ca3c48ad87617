package kafka

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/waybill-go/waybill/broker"
)

var errClosed = broker.Scoped(broker.Unavailable, broker.ScopeBroker, errors.New("watermill-kafka: closed"))

// publisher is watermill-kafka's, which can't be made while no server answers.
type publisher struct {
	conf Config

	mu     sync.Mutex
	made   *wmkafka.Publisher
	closed bool
}

func (p *publisher) get() (*wmkafka.Publisher, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosed
	}
	if p.made == nil {
		made, err := wmkafka.NewPublisher(wmkafka.PublisherConfig{
			Brokers: p.conf.Addresses, OverwriteSaramaConfig: p.conf.producer(), Marshaler: wmkafka.NewWithPartitioningMarshaler(byKey),
		}, nil)
		if err != nil { // Whatever it is: nothing was sent.
			return nil, broker.Scoped(broker.Unavailable, broker.ScopeBroker, err)
		}
		p.made = made
	}
	return p.made, nil
}

// Publish returns when all replicas in sync have the messages.
func (p *publisher) Publish(topic string, messages ...*message.Message) error {
	made, err := p.get()
	if err != nil {
		return err
	}
	return made.Publish(topic, messages...)
}

func (p *publisher) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.made == nil {
		return nil
	}
	made := p.made
	p.made = nil
	return made.Close()
}

// asker asks Kafka for topics, and whether it is there.
type asker struct {
	conf Config

	mu     sync.Mutex
	client sarama.Client
	closed bool
}

// ask calls do with a client, which is thrown away after an error: the next one may
// reach another server.
func (a *asker) ask(do func(sarama.Client) error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed { // Whoever asks was left behind by its caller.
		return errClosed
	}
	if a.client == nil {
		conf := sarama.NewConfig()
		conf.Metadata.Retry.Max = 1
		client, err := sarama.NewClient(a.conf.Addresses, a.conf.tuned(conf))
		if err != nil {
			return unavailable(err)
		}
		a.client = client
	}
	if err := do(a.client); err != nil {
		_ = a.client.Close()
		a.client = nil
		return unavailable(err)
	}
	return nil
}

func (a *asker) close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	if a.client == nil {
		return nil
	}
	client := a.client
	a.client = nil
	return client.Close()
}

// within calls what knows no context, and leaves it behind when ctx is done.
func within(ctx context.Context, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return broker.Classify(broker.Unavailable, fmt.Errorf("watermill-kafka: %w", context.Cause(ctx)))
	}
}

func (a *asker) alive(ctx context.Context) error {
	return within(ctx, func() error {
		return a.ask(func(c sarama.Client) error {
			_, err := c.RefreshController()
			return err
		})
	})
}

// ensure leaves topics that exist as they are.
func (a *asker) ensure(ctx context.Context, topics ...string) error {
	return within(ctx, func() error {
		return a.ask(func(c sarama.Client) error {
			admin, err := sarama.NewClusterAdminFromClient(c)
			if err != nil {
				return err
			}
			detail := &sarama.TopicDetail{NumPartitions: int32(a.conf.Partitions), ReplicationFactor: int16(a.conf.ReplicationFactor)}
			for _, topic := range topics {
				if err := admin.CreateTopic(topic, detail, false); err != nil && !errors.Is(err, sarama.ErrTopicAlreadyExists) {
					return fmt.Errorf("%s: %w", topic, err)
				}
			}
			return nil
		})
	})
}

// unavailable is an error of something that changes nothing; a refusal needs somebody.
func unavailable(err error) error {
	for _, refusal := range []sarama.KError{
		sarama.ErrTopicAuthorizationFailed, sarama.ErrClusterAuthorizationFailed, sarama.ErrSASLAuthenticationFailed,
		sarama.ErrInvalidTopic, sarama.ErrPolicyViolation, sarama.ErrInvalidReplicationFactor,
	} {
		if errors.Is(err, refusal) {
			return broker.Classify(broker.Permanent, err)
		}
	}
	return broker.Scoped(broker.Unavailable, broker.ScopeBroker, err)
}

// refusals are the answers that say that a message isn't stored.
var refusals = map[sarama.KError]broker.Scope{
	sarama.ErrMessageSizeTooLarge: broker.ScopeRow, sarama.ErrMessageSetSizeTooLarge: broker.ScopeRow,
	sarama.ErrInvalidRecord: broker.ScopeRow, sarama.ErrInvalidTimestamp: broker.ScopeRow,
	sarama.ErrInvalidTopic: broker.ScopeTopic, sarama.ErrTopicAuthorizationFailed: broker.ScopeTopic,
	sarama.ErrPolicyViolation: broker.ScopeTopic, sarama.ErrUnknownTopicOrPartition: broker.ScopeTopic,
	sarama.ErrLeaderNotAvailable: broker.ScopeTopic, sarama.ErrNotEnoughReplicas: broker.ScopeTopic,
	sarama.ErrClusterAuthorizationFailed: broker.ScopeBroker, sarama.ErrSASLAuthenticationFailed: broker.ScopeBroker,
}

// classify says what an error of the publisher means. Only what says that nothing is
// stored is believed: sarama tells the last of its attempts, and one before it may have
// arrived.
func classify(err error) (broker.Class, broker.Scope) {
	if class := broker.ClassOf(err); class == broker.Unavailable {
		return class, broker.ScopeOf(err)
	}
	if code, ok := errors.AsType[sarama.KError](err); ok {
		scope, refused := refusals[code]
		switch {
		case refused && scope == broker.ScopeRow:
			return broker.Permanent, scope
		case refused:
			return broker.Transient, scope
		}
		return broker.Unknown, broker.ScopeUnknown
	}
	if _, ok := errors.AsType[sarama.ConfigurationError](err); ok { // Too large, before it is sent.
		return broker.Permanent, broker.ScopeRow
	}
	if _, network := errors.AsType[net.Error](err); network || errors.Is(err, sarama.ErrOutOfBrokers) {
		return broker.Unknown, broker.ScopeBroker
	}
	return broker.Unknown, broker.ScopeUnknown
}
