package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/waybill-go/waybill/broker"
)

const (
	// heartbeat is how often a member is heard, and hears of a rebalance.
	heartbeat = time.Second
	// idleFetch is how long a server keeps a fetch for which it has nothing. Meanwhile it
	// isn't asked for a partition that was full and is hungry again: where others are idle,
	// a partition waits so long for each of its megabytes.
	idleFetch = 100 * time.Millisecond
	// leaveIn is how long Close waits for Kafka before it cuts the connections.
	leaveIn = 5 * time.Second
)

var (
	_ broker.Consumer = (*consumer)(nil)
	_ broker.Lagging  = (*consumer)(nil)
	_ broker.Stateful = (*consumer)(nil)
)

// consumer is a member of a group. kgo fetches, keeps the membership alive and
// commits what is marked; the order of acknowledgements, back-pressure and what
// happens to a partition that is taken away are here.
type consumer struct {
	broker *Broker
	topic  string
	logger *slog.Logger
	client *kgo.Client
	group  group // The client.
	wire   *wire
	ctx    context.Context // Done when closing.
	stop   context.CancelFunc
	done   chan struct{} // Closed when polling has ended.
	wake   chan struct{} // Holds one: there may be something to deliver.

	mu         sync.Mutex
	health     health
	partitions []*partition
	turn       int
	marks      map[string]map[int32]kgo.EpochOffset // One, used again: see mark.
	source     [16]byte                             // The id of the topic that is fetched.
	origins    map[int32]origin                     // Of what the group has committed, as of the last join.
}

// group is what a [kgo.Client] does for a member.
type group interface {
	MarkCommitOffsets(map[string]map[int32]kgo.EpochOffset)
	CommitMarkedOffsets(context.Context) error
	PauseFetchPartitions(map[string][]int32) map[string][]int32
	ResumeFetchPartitions(map[string][]int32)
}

var _ group = (*kgo.Client)(nil)

// Consume joins in the background: it also works while no server is up or the
// topic doesn't exist yet.
func (b *Broker) Consume(_ context.Context, topic, group string) (broker.Consumer, error) {
	if topic == "" || group == "" {
		return nil, fmt.Errorf("kafka: Consume needs a topic and a group, got %q and %q", topic, group)
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
		wire:   b.conf.wire(),
		done:   make(chan struct{}),
		wake:   make(chan struct{}, 1),
		health: health{since: time.Now(), stuck: map[int32]stuck{}},
	}
	c.ctx, c.stop = context.WithCancel(context.Background())
	if err := c.join(group); err != nil { //nolint:contextcheck // As below.
		c.stop()
		return nil, fmt.Errorf("kafka: Options: %w", err)
	}
	b.consumers[c] = struct{}{}
	go c.run(group) //nolint:contextcheck // The member outlives the call.
	return c, nil
}

// join holds mu until client is set: kgo joins in the background, and may have called assigned,
// and starts after it, before NewClient returns.
func (c *consumer) join(group string) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.client, err = kgo.NewClient(c.options(group)...); err != nil {
		return err
	}
	c.group = c.client
	return nil
}

func (c *consumer) options(group string) []kgo.Opt {
	conf := c.broker.conf
	return append(append(conf.options(c.wire), c.broker.process.options()...),
		kgo.WithHooks((*watcher)(c)),
		kgo.WithContext(c.committing(context.Background())), // Commits by themselves are in it.
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(c.topic),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), // A new group.
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), // See missed.
		kgo.KeepControlRecords(),                          // They take offsets.
		kgo.FetchMaxPartitionBytes(fetchAhead),
		kgo.SessionTimeout(conf.SessionTimeout),
		kgo.RebalanceTimeout(conf.RebalanceTimeout),
		kgo.HeartbeatInterval(heartbeat),
		kgo.BlockRebalanceOnPoll(), // What was polled is added before a partition goes, and never after.
		kgo.AutoCommitMarks(),
		kgo.AutoCommitInterval(500*time.Millisecond),
		kgo.AutoCommitCallback(func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
			c.committed(resp, err)
		}),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, added map[string][]int32) { c.assigned(added[c.topic]) }),
		kgo.OnOffsetsFetched(c.offsets),
		kgo.AdjustFetchOffsetsFn(c.starts),
		kgo.OnPartitionsRevoked(func(ctx context.Context, _ *kgo.Client, lost map[string][]int32) { c.revoked(ctx, lost[c.topic], true) }),
		kgo.OnPartitionsLost(func(ctx context.Context, _ *kgo.Client, lost map[string][]int32) {
			c.revoked(ctx, lost[c.topic], false)
		}),
	)
}

func (c *consumer) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Receive takes what has been fetched, of all partitions in turn. When the topic was
// deleted, and what was delivered of it is settled, it fails: kgo keeps to that topic, and
// doesn't read one that was made under its name meanwhile, which whoever joins again does.
func (c *consumer) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if c.ctx.Err() != nil {
			return nil, ErrClosed
		}
		if entries := c.take(max(1, limit)); len(entries) > 0 {
			return deliveries(entries), nil
		}
		if c.isOver() {
			return nil, broker.Classify(broker.Unavailable, fmt.Errorf("kafka: topic %s was deleted, and may have been created again: it has to be joined again", c.topic))
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

func deliveries(entries []*entry) []broker.Delivery {
	all := make([]broker.Delivery, len(entries))
	var at texts
	for i, e := range entries {
		all[i] = broker.Delivery{
			Message:     decode(e.record, &at, len(entries)-i-1),
			Published:   published(e.record),
			Partition:   strconv.Itoa(int(e.partition.id)),
			Redelivered: e.times,
			Lost:        e.partition.lost,
			Token:       e,
		}
	}
	return all
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
	c.broker.mu.Lock()
	_, open := c.broker.consumers[c]
	delete(c.broker.consumers, c)
	c.broker.mu.Unlock()
	c.stop()
	<-c.done
	if !open {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, leaveIn)
	defer cancel()
	var err error
	if !c.isGone(0) { // see mark
		err = c.client.CommitMarkedOffsets(c.committing(ctx))
	}
	err = errors.Join(err, c.client.LeaveGroupContext(ctx))
	c.wire.close()
	c.client.Close()
	c.mu.Lock()
	c.health.leave()
	c.health.err = ErrClosed
	c.mu.Unlock()
	if err != nil {
		return broker.Classify(broker.Unknown, fmt.Errorf("kafka: left the group without Kafka's answer, what was acknowledged last may be delivered again: %w", err))
	}
	return nil
}
