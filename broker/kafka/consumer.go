package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"

	"github.com/waybill-go/waybill/broker"
)

const (
	// drainIn is how long a partition that is taken away waits for the messages
	// that are being handled. Who gets it next waits with it; partitions that stay
	// don't. It is less if half of Group.Rebalance.Timeout is, since past that
	// timeout sarama gives all partitions up.
	drainIn = 5 * time.Second
	// leaveIn is how long Close waits for Kafka before it cuts the connections.
	leaveIn = 5 * time.Second
	// joinIn is how long Close waits for the answer to a join, which comes when
	// all other members have joined too.
	joinIn = 1500 * time.Millisecond
)

var (
	_ broker.Consumer             = (*consumer)(nil)
	_ broker.Lagging              = (*consumer)(nil)
	_ sarama.ConsumerGroupHandler = (*consumer)(nil)
)

// consumer is a member of a group. sarama fetches, keeps the membership alive
// and commits what is marked; the order of acknowledgements, back-pressure and
// what happens to a partition that is taken away are here.
type consumer struct {
	broker *Broker
	topic  string
	logger *slog.Logger
	conf   *sarama.Config
	cutter *cutter
	ctx    context.Context // Done when closing.
	stop   context.CancelFunc
	done   chan struct{} // Closed when the membership has ended.
	left   error         // What came of leaving; after done.
	wake   chan struct{} // Holds one: there may be something to deliver.

	mu         sync.Mutex
	group      sarama.ConsumerGroup
	session    sarama.ConsumerGroupSession // Nil while not in the group.
	partitions []*partition
	turn       int
	down       bool // The last attempt to join failed, and was logged.
}

// Consume joins in the background: it also works while no server is up or the
// topic doesn't exist yet.
func (b *Broker) Consume(_ context.Context, topic, group string) (broker.Consumer, error) {
	if topic == "" || group == "" {
		return nil, fmt.Errorf("kafka: Consume needs a topic and a group, got %q and %q", topic, group)
	}
	// Of its own: a strategy of balancing remembers the generation of one member.
	conf, err := b.conf.sarama()
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, broker.Classify(broker.Unavailable, ErrClosed)
	}
	c := &consumer{
		broker: b,
		topic:  topic,
		logger: b.conf.Logger.With("topic", topic, "group", group),
		cutter: newCutter(conf),
		done:   make(chan struct{}),
		wake:   make(chan struct{}, 1),
	}
	c.conf = c.cutter.config(conf)
	// The answer to a join comes when every member has joined.
	c.conf.Net.ReadTimeout = max(c.conf.Net.ReadTimeout, c.conf.Consumer.Group.Rebalance.Timeout+leaveIn)
	backoff := c.conf.Metadata.Retry.BackoffFunc
	c.conf.Metadata.Retry.BackoffFunc = func(retries, most int) time.Duration {
		switch {
		case c.cutter.ctx.Err() != nil:
			return 0 // sarama tries several times for each step of leaving.
		case backoff != nil:
			return backoff(retries, most)
		}
		return c.conf.Metadata.Retry.Backoff
	}
	c.ctx, c.stop = context.WithCancel(context.Background())
	b.consumers[c] = struct{}{}
	go c.run(group)
	return c, nil
}

// run is a member of the group until the consumer is closed.
func (c *consumer) run(group string) {
	defer close(c.done)
	wait := firstWait
	for c.ctx.Err() == nil {
		g, err := sarama.NewConsumerGroup(c.broker.conf.Addresses, group, c.conf)
		if err == nil {
			err = c.join(g)
		}
		c.interrupted(err)
		_ = sleep(c.ctx, wait)
		wait = min(2*wait, maxWait)
	}
}

// join consumes session after session. It returns when g is of no use any more.
func (c *consumer) join(g sarama.ConsumerGroup) error {
	c.mu.Lock()
	c.group = g
	c.mu.Unlock()
	var errs sync.WaitGroup
	errs.Go(func() {
		for err := range g.Errors() {
			c.logger.Debug("kafka: consumer", "error", err)
		}
	})
	defer errs.Wait()
	defer func() { c.left = g.Close() }()
	for wait := firstWait; c.ctx.Err() == nil; {
		// The same member comes again, so that the group needn't wait until an old
		// one has timed out.
		err := g.Consume(c.ctx, []string{c.topic}, c)
		switch {
		case errors.Is(err, sarama.ErrClosedClient), errors.Is(err, sarama.ErrClosedConsumerGroup):
			return err
		case err == nil:
			wait = firstWait
		default:
			c.interrupted(err)
			_ = sleep(c.ctx, wait)
			wait = min(2*wait, maxWait)
		}
	}
	return nil
}

// interrupted logs the first failure of an outage.
func (c *consumer) interrupted(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil || c.down || c.ctx.Err() != nil {
		return
	}
	c.down = true
	c.logger.Warn("kafka: consuming is interrupted, trying again", "error", err)
}

// Setup is called by sarama when the group has been joined.
func (c *consumer) Setup(session sarama.ConsumerGroupSession) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session = session
	if c.down {
		c.down = false
		c.logger.Info("kafka: consuming goes on")
	}
	return nil
}

// Cleanup is called by sarama when a session is over.
func (c *consumer) Cleanup(sarama.ConsumerGroupSession) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session = nil
	return nil
}

// ConsumeClaim is called by sarama for each partition, and returns when the
// partition is not this consumer's any more. A rebalance doesn't touch the
// partitions that stay.
func (c *consumer) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	p := &partition{
		consumer: c, topic: claim.Topic(), id: claim.Partition(), session: session, claim: claim,
		fetched: claim.InitialOffset(), looked: -1, lost: make(chan struct{}), settled: make(chan struct{}),
	}
	c.mu.Lock()
	c.partitions = append(c.partitions, p)
	c.mu.Unlock()
	defer c.remove(p)
	for {
		// Never blocked by a slow Receive: a full partition is paused. So neither
		// other partitions nor the end of this one have to wait.
		select {
		case <-session.Context().Done():
			return nil
		case m, ok := <-claim.Messages():
			if !ok {
				return nil
			}
			c.add(p, m)
		}
	}
}

func (c *consumer) add(p *partition, m *sarama.ConsumerMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.add(m)
	if p.full() && !p.paused {
		p.paused = true
		c.group.Pause(map[string][]int32{p.topic: {p.id}})
	}
	c.signal()
}

func (c *consumer) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// remove gives p back: it waits a while for what is being handled, so that it
// needn't be done twice, and tells the rest that it is lost.
func (c *consumer) remove(p *partition) {
	c.mu.Lock()
	p.end()
	c.mu.Unlock()
	timer := time.NewTimer(min(drainIn, c.conf.Consumer.Group.Rebalance.Timeout/2))
	defer timer.Stop()
	select {
	case <-p.settled:
	case <-timer.C:
	case <-p.session.Context().Done():
		// The consumer is closing, or the group may have gone on without it.
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p.gone = true
	close(p.lost)
	c.partitions = slices.DeleteFunc(c.partitions, func(other *partition) bool { return other == p })
	c.resume(p)
}

// resume lets sarama fetch p again, which it would remember beyond this claim.
func (c *consumer) resume(p *partition) {
	if p.paused {
		p.paused = false
		c.group.Resume(map[string][]int32{p.topic: {p.id}})
	}
}

// Receive takes what has been fetched, of all partitions in turn.
func (c *consumer) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if c.ctx.Err() != nil {
			return nil, ErrClosed
		}
		if entries := c.take(max(1, limit)); len(entries) > 0 {
			return deliveries(entries)
		}
		select {
		case <-c.wake:
		case <-ctx.Done():
		case <-c.ctx.Done():
		}
	}
}

func (c *consumer) take(limit int) []*entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	var entries []*entry
	for range c.partitions {
		c.turn++
		p := c.partitions[c.turn%len(c.partitions)]
		entries = p.take(entries, limit)
		if p.hungry() {
			c.resume(p)
		}
		if len(entries) == limit {
			break
		}
	}
	return entries
}

func deliveries(entries []*entry) ([]broker.Delivery, error) {
	all := make([]broker.Delivery, len(entries))
	for i, e := range entries {
		m, err := (wmkafka.DefaultMarshaler{}).Unmarshal(e.message)
		if err != nil {
			return nil, fmt.Errorf("kafka: %w", err)
		}
		p := e.partition
		if m.UUID == "" {
			m.UUID = fmt.Sprintf("%s/%d/%d", p.topic, p.id, e.offset)
		}
		all[i] = broker.Delivery{
			Message: broker.Message{
				ID: m.UUID, Topic: p.topic, Key: string(e.message.Key), Headers: m.Metadata, Body: m.Payload,
			},
			Published:   published(e.message),
			Partition:   strconv.Itoa(int(p.id)),
			Redelivered: e.times,
			Lost:        p.lost,
			Token:       e,
		}
	}
	return all, nil
}

// published is zero for records of before Kafka 0.10, which have no time.
func published(m *sarama.ConsumerMessage) time.Time {
	if m.Timestamp.Unix() <= 0 {
		return time.Time{}
	}
	return m.Timestamp
}

// Ack has the offset committed up to which everything is acknowledged, within
// half a second, and when a partition or the group is left. It changes nothing
// for deliveries that are lost.
func (c *consumer) Ack(_ context.Context, deliveries ...broker.Delivery) error {
	return c.each(deliveries, (*partition).ack)
}

// Release delivers again from memory, to this consumer.
func (c *consumer) Release(_ context.Context, deliveries ...broker.Delivery) error {
	return c.each(deliveries, (*partition).release)
}

func (c *consumer) each(deliveries []broker.Delivery, do func(*partition, *entry)) error {
	if c.ctx.Err() != nil {
		return ErrClosed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range deliveries {
		e, ok := d.Token.(*entry)
		if !ok || e.partition.consumer != c {
			return fmt.Errorf("kafka: message %q was not delivered by this consumer", d.ID)
		}
		do(e.partition, e)
	}
	c.signal()
	return nil
}

// Close commits what is acknowledged and leaves the group. When ctx is done or
// Kafka doesn't answer within 5 s, it cuts the connections and says so: the
// group then notices after its session timeout.
func (c *consumer) Close(ctx context.Context) error {
	c.stop()
	ctx, cancel := context.WithTimeout(ctx, leaveIn)
	defer cancel()
	stop := context.AfterFunc(ctx, c.cutter.cut)
	select {
	case <-c.done:
	case <-time.After(joinIn):
		// Without the connections that wait for a join, sarama makes new ones for the
		// last commit, and to leave.
		c.cutter.drop()
	}
	<-c.done
	stop()
	c.cutter.cut()
	c.broker.mu.Lock()
	delete(c.broker.consumers, c)
	c.broker.mu.Unlock()
	if c.left != nil {
		return broker.Classify(broker.Unknown, fmt.Errorf("kafka: left the group without Kafka's answer, what was acknowledged last may be delivered again: %w", c.left))
	}
	return nil
}
