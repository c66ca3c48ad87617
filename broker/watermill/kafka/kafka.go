// Package kafka is Kafka through watermill-kafka, with the publisher and the subscriber
// that programs of Watermill use. It is for teams that run these already; others take
// broker/kafka, which promises more. It is a module of its own, so that nobody else
// links sarama.
//
// What it lacks beside broker/kafka: Prefix, so that a call has one message of a key;
// lag, the time of publication, and partitions of deliveries; more than one message of a
// partition out at a time; and a group's own troubles. The attributes of CloudEvents have
// the prefix of Watermill's metadata.
package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/watermill"
)

// answerIn is how long a server may take to connect and to answer.
const answerIn = 3 * time.Second

// Config says where Kafka is.
type Config struct {
	// Addresses are some of the cluster's servers, as host:port. Required.
	Addresses []string `yaml:"addresses"`
	// Partitions of a topic that EnsureTopics creates. Defaults to 8.
	Partitions int `yaml:"partitions"`
	// ReplicationFactor of a topic that EnsureTopics creates. Defaults to the cluster's
	// own default.
	ReplicationFactor int `yaml:"replication_factor"`
	// Tune changes what sarama is told, such as for TLS and a login: of the publisher,
	// of each subscriber, and of what asks for topics.
	Tune func(*sarama.Config) `yaml:"-"`
}

// FromSettings opens from a configuration file: kind "watermill-kafka" with the keys of
// [Config].
func FromSettings(_ context.Context, s broker.Settings) (broker.Broker, error) {
	var conf Config
	if err := s.Decode(&conf); err != nil {
		return nil, err
	}
	return orNil(Open(conf))
}

// orNil is no broker after an error, instead of one that is nil.
func orNil(b *Broker, err error) (broker.Broker, error) {
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Broker is Kafka.
type Broker struct {
	*watermill.Broker
	publisher *publisher
	asker     *asker
}

// Open connects when it is used: no server needs to be up.
func Open(conf Config) (*Broker, error) {
	if err := conf.check(); err != nil {
		return nil, err
	}
	conf.Partitions = cmp.Or(conf.Partitions, 8)
	conf.ReplicationFactor = cmp.Or(conf.ReplicationFactor, -1)
	b := &Broker{publisher: &publisher{conf: conf}, asker: &asker{conf: conf}}
	var err error
	b.Broker, err = watermill.New(watermill.Config{
		Publisher:    b.publisher,
		Subscriber:   conf.subscriber,
		EnsureTopics: b.asker.ensure,
		Alive:        b.asker.alive,
		Classify:     classify,
		Capabilities: broker.Capabilities{System: "kafka", KeyOrder: true, Groups: true, Redelivery: true, Durable: true},
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Close also closes the publisher.
func (b *Broker) Close(ctx context.Context) error {
	return errors.Join(b.Broker.Close(ctx), b.publisher.Close(), b.asker.close())
}

func (c Config) check() error {
	var errs []error
	if len(c.Addresses) == 0 {
		errs = append(errs, errors.New("watermill-kafka: addresses is missing: give host:port of at least one server"))
	}
	for _, address := range c.Addresses {
		if _, _, err := net.SplitHostPort(address); err != nil {
			errs = append(errs, fmt.Errorf("watermill-kafka: addresses has %q: write it as host:port", address))
		}
	}
	if c.Partitions < 0 {
		errs = append(errs, fmt.Errorf("watermill-kafka: partitions is %d: use 1 or more", c.Partitions))
	}
	if c.ReplicationFactor < 0 {
		errs = append(errs, fmt.Errorf("watermill-kafka: replication_factor is %d: use 1 or more, or leave it out for the cluster's default", c.ReplicationFactor))
	}
	return errors.Join(errs...)
}

// tuned is base as Tune wants it, and within the bounds of a call.
func (c Config) tuned(base *sarama.Config) *sarama.Config {
	base.Net.DialTimeout, base.Net.ReadTimeout, base.Net.WriteTimeout = answerIn, 10*time.Second, 10*time.Second
	base.Metadata.AllowAutoTopicCreation = false
	if c.Tune != nil {
		c.Tune(base)
	}
	return base
}

// producer is told to wait for all replicas, in whatever way it was tuned: what it
// acknowledges is published for good.
func (c Config) producer() *sarama.Config {
	conf := c.tuned(wmkafka.DefaultSaramaSyncPublisherConfig())
	conf.Producer.RequiredAcks = sarama.WaitForAll
	conf.Producer.Idempotent = true
	conf.Net.MaxOpenRequests = 1
	conf.Producer.Return.Successes = true
	return conf
}

func (c Config) subscriber(group string) (message.Subscriber, error) {
	conf := c.tuned(wmkafka.DefaultSaramaSubscriberConfig())
	conf.Consumer.Offsets.Initial = sarama.OffsetOldest
	conf.Consumer.Group.Heartbeat.Interval = time.Second // A member hears of the others with it.
	return wmkafka.NewSubscriber(wmkafka.SubscriberConfig{
		Brokers: c.Addresses, ConsumerGroup: group, OverwriteSaramaConfig: conf, Unmarshaler: wmkafka.DefaultMarshaler{},
	}, nil)
}

// byKey gives the messages of a key one partition.
func byKey(_ string, m *message.Message) (string, error) { return m.Metadata[watermill.KeyHeader], nil }
