// Package kafka is the broker port on Apache Kafka, 2.4 and newer.
//
// Messages have the form of Watermill's Kafka publisher, so that a stock
// Watermill subscriber reads them, and Receive reads those of a stock Watermill
// publisher: Key is the record's key, Headers are its headers, and ID is in the
// header _watermill_message_uuid. A record without that header gets the id
// "topic/partition/offset".
//
// The partition is found from the key as Java's client does it. Adding
// partitions to a topic moves keys, and ends their order at that point.
package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/waybill-go/waybill/broker"
)

var (
	_ broker.Broker = (*Broker)(nil)
	_ broker.Opener = FromSettings
)

const (
	// lookIn is how long Open looks for a server.
	lookIn = 3 * time.Second
	// adminIn is how long a server may take to answer about topics.
	adminIn = 10 * time.Second
	// ensureIn is how long EnsureTopics waits for new topics to be ready.
	ensureIn = 30 * time.Second
	// idleProducers is how many producers are kept between calls.
	idleProducers = 8
)

// Broker is a connection to a cluster. It outlives outages of any length.
type Broker struct {
	conf    Config
	sarama  *sarama.Config
	cluster *cluster
	ctx     context.Context // Done when Close doesn't wait any longer.
	cut     context.CancelFunc

	mu        sync.Mutex
	closed    bool
	idle      []*producer
	consumers map[*consumer]struct{}
	calls     sync.WaitGroup // Of Publish and EnsureTopics.
}

// FromSettings opens from a configuration file: kind "kafka" with the keys of
// [Config], and acks, which can only be "all".
func FromSettings(ctx context.Context, s broker.Settings) (broker.Broker, error) {
	var settings struct {
		Config `yaml:",inline"`
		Acks   string `yaml:"acks"`
	}
	if err := s.Decode(&settings); err != nil {
		return nil, err
	}
	if settings.Acks != "" && settings.Acks != "all" {
		return nil, fmt.Errorf("kafka: acks is %q: with less than all, an acknowledged message is lost when its leader fails; write acks: all, or leave it out", settings.Acks)
	}
	b, err := Open(ctx, settings.Config)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Open checks conf, and looks for a server for 3 s at most: one that refuses the
// login is an error. No server needs to be up, neither now nor later: while none
// is, Publish says [broker.Unavailable], and consumers wait.
func Open(ctx context.Context, conf Config) (*Broker, error) {
	conf = conf.withDefaults()
	sc, err := conf.sarama()
	if err != nil {
		return nil, err
	}
	b := &Broker{conf: conf, sarama: sc, cluster: newCluster(sc, conf.Addresses), consumers: map[*consumer]struct{}{}}
	p := newProducer(b.cluster)
	if err := look(ctx, p); err != nil {
		p.close()
		return nil, err
	}
	b.ctx, b.cut = context.WithCancel(context.Background())
	b.idle = append(b.idle, p)
	return b, nil
}

// look connects to a server. It fails if one refuses the login, or ctx is done:
// servers that don't answer may do so later.
func look(ctx context.Context, p *producer) error {
	bounded, cancel := context.WithTimeout(ctx, lookIn)
	defer cancel()
	err := p.any(bounded, func(context.Context, *link) error { return nil })
	switch code, answered := errors.AsType[sarama.KError](err); {
	case err == nil:
		return nil
	case answered && (code == sarama.ErrSASLAuthenticationFailed || code == sarama.ErrUnsupportedSASLMechanism):
		return broker.Classify(broker.Permanent, fmt.Errorf("kafka: %s refuses the login: %w; correct user, password or mechanism", strings.Join(p.cluster.seeds, ", "), code))
	}
	return ctx.Err()
}

// Capabilities declares all but Dedup: what Kafka recognises as sent again is
// what one call tries again, not what two calls publish.
func (b *Broker) Capabilities() broker.Capabilities {
	return broker.Capabilities{System: "kafka", Prefix: true, KeyOrder: true, Groups: true, Redelivery: true, Durable: true}
}

// begin admits a call that Close waits for. The context it returns also ends
// when Close waits no longer.
func (b *Broker) begin(ctx context.Context) (context.Context, func(), error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, nil, broker.Scoped(broker.Unavailable, broker.ScopeBroker, ErrClosed)
	}
	b.calls.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(b.ctx, func() { cancel(ErrClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
		b.calls.Done()
	}, nil
}

// Publish sends messages and waits for the answers of all in-sync replicas. It
// ends when ctx is done or PublishTimeout is over; then nothing of the call is
// sent any more. While no server can be reached it fails within some seconds, as
// [broker.Unavailable].
func (b *Broker) Publish(ctx context.Context, messages []broker.Message) error {
	if len(messages) == 0 {
		return nil
	}
	ctx, end, err := b.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	ctx, cancel := context.WithTimeoutCause(ctx, b.conf.PublishTimeout, fmt.Errorf("kafka: not done within publish_timeout, %v", b.conf.PublishTimeout))
	defer cancel()
	c := newCall(b.sarama, messages)
	if len(c.topics) > 0 {
		p := b.take()
		p.publish(ctx, c)
		b.put(p)
	}
	return c.err()
}

func (b *Broker) take() *producer {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.idle); n > 0 {
		p := b.idle[n-1]
		b.idle = b.idle[:n-1]
		return p
	}
	return newProducer(b.cluster)
}

func (b *Broker) put(p *producer) {
	b.mu.Lock()
	keep := !b.closed && len(b.idle) < idleProducers
	if keep {
		b.idle = append(b.idle, p)
	}
	b.mu.Unlock()
	if !keep {
		p.close()
	}
}

// EnsureTopics creates what is missing, with the configured number of
// partitions, and waits until every partition has a leader, at most 30 s.
func (b *Broker) EnsureTopics(ctx context.Context, topics ...string) error {
	if len(topics) == 0 {
		return nil
	}
	for _, topic := range topics {
		if err := checkTopic(topic); err != nil {
			return broker.Classify(broker.Permanent, fmt.Errorf("kafka: %w", err))
		}
	}
	ctx, end, err := b.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	ctx, cancel := context.WithTimeoutCause(ctx, ensureIn, fmt.Errorf("not ready within %v", ensureIn))
	defer cancel()
	cutter := newCutter(b.sarama)
	defer cutter.cut()
	defer context.AfterFunc(ctx, cutter.cut)()
	conf := cutter.config(b.sarama)
	conf.Metadata.Full = true // Without it sarama doesn't find the controller.
	conf.Metadata.Retry.Max = 1
	conf.Net.ReadTimeout = adminIn
	if err := b.ensure(ctx, conf, topics); err != nil {
		if ctx.Err() != nil {
			err = errors.Join(context.Cause(ctx), err)
		}
		return fmt.Errorf("kafka: topics: %w", err)
	}
	return nil
}

func (b *Broker) ensure(ctx context.Context, conf *sarama.Config, topics []string) error {
	admin, err := sarama.NewClusterAdmin(b.conf.Addresses, conf)
	if err != nil {
		return err
	}
	defer admin.Close()
	largest := strconv.Itoa(b.conf.MaxMessageBytes)
	detail := &sarama.TopicDetail{
		NumPartitions: int32(b.conf.Partitions), ReplicationFactor: int16(b.conf.ReplicationFactor),
		ConfigEntries: map[string]*string{"max.message.bytes": &largest},
	}
	created := map[string]bool{}
	for wait := firstWait; ; wait = min(2*wait, maxWait) {
		known, err := admin.DescribeTopics(topics)
		if err != nil {
			return err
		}
		ready := true
		for _, topic := range known {
			switch {
			case topic.Err == sarama.ErrUnknownTopicOrPartition:
				ready = false
				if created[topic.Name] {
					break
				}
				// Another process may be faster.
				if err := admin.CreateTopic(topic.Name, detail, false); err != nil && !errors.Is(err, sarama.ErrTopicAlreadyExists) {
					return topicError(topic.Name, err)
				}
				created[topic.Name] = true
			case topic.Err == sarama.ErrLeaderNotAvailable:
				ready = false
			case topic.Err != sarama.ErrNoError:
				return topicError(topic.Name, topic.Err)
			}
			for _, p := range topic.Partitions {
				ready = ready && p.Leader >= 0
			}
		}
		if ready {
			return nil
		}
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// topicError says whose fault it is that there is no such topic.
func topicError(topic string, err error) error {
	err = fmt.Errorf("%s: %w", topic, err)
	if code, ok := errors.AsType[sarama.KError](err); ok && refusals[code].stays {
		return broker.Scoped(broker.Permanent, refusals[code].scope, err)
	}
	return err
}

// Close waits for calls under way, closes what consumers are still open, and
// when ctx is done, cuts what is left.
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

	var wg sync.WaitGroup
	errs := make([]error, len(open))
	for i, c := range open {
		wg.Go(func() { errs[i] = c.Close(ctx) })
	}
	stop := context.AfterFunc(ctx, b.cut)
	b.calls.Wait()
	wg.Wait()
	stop()
	b.cut()
	for _, p := range b.idle {
		p.close()
	}
	return errors.Join(errs...)
}
