package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/waybill-go/waybill/broker"
)

// ensureIn is how long EnsureTopics waits for new topics to be ready.
const ensureIn = 30 * time.Second

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
	p, err := b.take()
	if err != nil {
		return err
	}
	defer b.put(p)
	defer context.AfterFunc(ctx, p.wire.cut)() // kgo may wait for an answer.
	if err := b.ensure(ctx, kadm.NewClient(p.client), topics); err != nil {
		p.broken = true
		if ctx.Err() != nil {
			err = errors.Join(context.Cause(ctx), err)
		}
		return fmt.Errorf("kafka: topics: %w", err)
	}
	return nil
}

// ensure asks until all topics are ready, and creates each once.
func (b *Broker) ensure(ctx context.Context, admin *kadm.Client, topics []string) error {
	created := map[string]bool{}
	for wait := firstWait; ; wait = min(2*wait, maxWait) {
		known, err := admin.ListTopicsWithInternal(ctx, topics...)
		if err != nil {
			return err
		}
		ready := true
		for _, topic := range topics {
			found := known[topic]
			switch {
			case errors.Is(found.Err, kerr.UnknownTopicOrPartition):
				if !created[topic] {
					if err := b.create(ctx, admin, topic); err != nil {
						return topicError(topic, err)
					}
				}
				created[topic], ready = true, false
			case errors.Is(found.Err, kerr.LeaderNotAvailable):
				ready = false
			case found.Err != nil:
				return topicError(topic, found.Err)
			}
			for _, p := range found.Partitions {
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

// create creates a topic, unless another process is faster.
func (b *Broker) create(ctx context.Context, admin *kadm.Client, topic string) error {
	text := func(n int) *string { s := strconv.Itoa(n); return &s }
	configs := map[string]*string{"max.message.bytes": text(b.conf.MaxMessageBytes)}
	if n := b.conf.MinInSyncReplicas; n > 0 {
		configs["min.insync.replicas"] = text(n)
	}
	made, err := admin.CreateTopic(ctx, int32(b.conf.Partitions), int16(b.conf.ReplicationFactor), configs, topic)
	if errors.Is(err, kerr.TopicAlreadyExists) {
		return nil
	}
	if err != nil && made.ErrMessage != "" {
		err = fmt.Errorf("%w (%s)", err, made.ErrMessage) // It names what is in the way.
	}
	return err
}

// topicError says whose fault it is that there is no such topic.
func topicError(topic string, err error) error {
	err = fmt.Errorf("%s: %w", topic, err)
	if refused := refusals[codeOf(err)]; refused.stays {
		return broker.Scoped(broker.Permanent, refused.scope, err)
	}
	return err
}
