package nats

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybill-go/waybill/broker"
)

// Consume implements [broker.Broker]. The topic's stream must exist.
func (b *Broker) Consume(ctx context.Context, topic, group string) (broker.Consumer, error) {
	ctx, cancel := b.watch(ctx, "$JS.API.STREAM.NAMES", "."+durableName(group), "."+ofTopic(group, topic))
	defer cancel()
	c, err := b.consume(ctx, topic, group)
	if err != nil {
		return nil, classify(fmt.Errorf("nats: consume %q as %q: %w", topic, group, cause(ctx, err)))
	}
	return c, nil
}

func (b *Broker) consume(ctx context.Context, topic, group string) (*consumer, error) {
	if group == "" {
		return nil, errors.New("a group is required")
	}
	if err := b.reach(); err != nil {
		return nil, err
	}
	if err := checkVersion(b.nc.ConnectedServerVersion()); err != nil {
		return nil, err
	}
	stream, err := b.js.StreamNameBySubject(ctx, topic)
	if err != nil {
		return nil, err
	}
	js, err := b.durable(ctx, stream, topic, group)
	if err != nil {
		return nil, err
	}
	tells, made, err := b.tells(ctx, stream, topic)
	if err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	c := &consumer{
		b: b, js: js, topic: topic, stream: stream, made: made, name: js.CachedInfo().Name, stop: stop, arrived: make(chan struct{}, 1), held: map[uint64]*loan{},
		state: broker.State{Joined: true, Since: time.Now()}, missing: missing{counts: tells},
	}

	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		stop()
		return nil, nats.ErrConnectionClosed
	}
	b.consumers[c] = struct{}{}
	c.running.Go(func() { c.pump(running) })
	return c, nil
}

// durable is the group's consumer of a topic, which is made if it isn't there. It has the group's
// name. Where that is one of another topic of the same stream, as a group may read several, the
// topic is in its name, too: a consumer that is given another topic goes on in the stream where it
// was for the former one, and what it passed of the new one nobody would get.
func (b *Broker) durable(ctx context.Context, stream, topic, group string) (jetstream.Consumer, error) {
	config := jetstream.ConsumerConfig{
		Durable:        durableName(group),
		FilterSubject:  topic,
		DeliverPolicy:  jetstream.DeliverAllPolicy,
		AckPolicy:      jetstream.AckExplicitPolicy,
		AckWait:        ackWait,
		MaxAckPending:  maxHeld,
		MaxDeliver:     -1,
		PriorityPolicy: jetstream.PriorityPolicyPinned,
		PriorityGroups: []string{pinGroup},
		PinnedTTL:      b.timing.absence,
	}
	beside := ofTopic(group, topic)
	for {
		found, err := b.js.Consumer(ctx, stream, config.Durable)
		switch {
		case errors.Is(err, jetstream.ErrConsumerNotFound):
			made, err := b.js.CreateConsumer(ctx, stream, config)
			if errors.Is(err, jetstream.ErrConsumerExists) {
				continue // somebody was faster, perhaps for another topic
			}
			return made, err
		case err != nil:
			return nil, err
		}
		if of := found.CachedInfo().Config.FilterSubject; of == topic || of == "" || config.Durable == beside {
			config.Metadata = found.CachedInfo().Config.Metadata
			return b.js.UpdateConsumer(ctx, stream, config)
		}
		config.Durable = beside
	}
}

// ofTopic is the name of a group's consumer of one topic beside that of another.
func ofTopic(group, topic string) string { return durableName(group + " " + topic) }

// checkVersion refuses servers that can't reset a consumer.
func checkVersion(version string) error {
	var major, minor int
	// A build of somebody's own may have another kind of version: it has to know
	// what it does.
	if n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor); n < 2 {
		return nil
	}
	if major < 2 || (major == 2 && minor < 14) {
		return fmt.Errorf("the server's version is %s: consuming needs 2.14 or later", version)
	}
	return nil
}

// durableName is a group as the name of a consumer. What had to be replaced is
// told apart by a hash.
func durableName(group string) string {
	safe := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '_'
	}, group)
	if safe == group {
		return safe
	}
	sum := sha256.Sum256([]byte(group))
	return safe + "-" + hex.EncodeToString(sum[:4])
}
