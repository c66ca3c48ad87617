// Package kafka is the broker port on Apache Kafka, 2.4 and newer.
//
// Messages have the form of Watermill's Kafka publisher, so that a stock
// Watermill subscriber reads them, and Receive reads those of a stock Watermill
// publisher: Key is the record's key, Headers are its headers, and ID is in the
// header _watermill_message_uuid. A record without that header gets the id
// "topic/partition/offset/timestamp", the last in Unix milliseconds.
//
// The partition is found from the key as Java's client does it. Adding
// partitions to a topic moves keys, and ends their order at that point.
package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill/broker"
)

var (
	_ broker.Broker    = (*Broker)(nil)
	_ broker.Clustered = (*Broker)(nil)
	_ broker.Opener    = FromSettings
)

const (
	// lookIn is how long Open looks for a server.
	lookIn = 3 * time.Second
	// idleProducers is how many producers are kept between calls.
	idleProducers = 8
)

// Broker is a connection to a cluster. It outlives outages of any length.
type Broker struct {
	conf    Config
	process process
	ctx     context.Context // Done when Close doesn't wait any longer.
	cut     context.CancelFunc

	mu        sync.Mutex
	closed    bool
	idle      []*producer
	consumers map[*consumer]struct{}
	marked    map[string]bool // Topics of marks that are there.
	cluster   string          // Its id, as it was known last.
	calls     sync.WaitGroup  // Of Publish and EnsureTopics.
}

// FromSettings opens from a configuration file: kind "kafka" with the keys of
// [Config], and acks, which can only be "all".
func FromSettings(ctx context.Context, s broker.Settings) (broker.Broker, error) {
	conf, err := ConfigFrom(s)
	if err != nil {
		return nil, err
	}
	b, err := Open(ctx, conf)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Open checks conf, and looks for a server for 3 s at most: one that refuses the
// login is an error, and so is one whose certificate isn't trusted. No server needs
// to be up, neither now nor later: while none is, Publish says
// [broker.Unavailable], and consumers wait.
func Open(ctx context.Context, conf Config) (*Broker, error) {
	conf = conf.withDefaults()
	if err := conf.check(); err != nil {
		return nil, err
	}
	p, err := conf.producer()
	if err != nil {
		return nil, err
	}
	if err := p.look(ctx); err != nil {
		p.close()
		return nil, err
	}
	b := &Broker{conf: conf, process: processOf(p.client), idle: []*producer{p}, consumers: map[*consumer]struct{}{}, marked: map[string]bool{}}
	b.ctx, b.cut = context.WithCancel(context.Background())
	return b, nil
}

// look connects to a server. It fails if there is one that can't be logged in to,
// or ctx is done: servers that don't answer may do so later.
func (p *producer) look(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, lookIn)
	defer cancel()
	err := p.client.Ping(bounded)
	if login(err) {
		return broker.Scoped(broker.Permanent, broker.ScopeBroker, fmt.Errorf("kafka: %s refuses the login, or isn't trusted: %w; correct user, password or mechanism under sasl, leave sasl out where the port has no logins, or correct the files under tls", strings.Join(p.wire.conf.Addresses, ", "), err))
	}
	return ctx.Err()
}

// clusterOf is the id that a client has been told; "": none was yet.
func clusterOf(client *kgo.Client) string {
	asking, cancel := context.WithCancel(context.Background())
	cancel() // What it has been told is there.
	known, err := kadm.NewClient(client).BrokerMetadata(asking)
	if err != nil {
		return ""
	}
	return known.Cluster
}

// Capabilities declares all but Dedup: what Kafka recognises as sent again is
// what one call tries again, not what two calls publish.
func (b *Broker) Capabilities() broker.Capabilities {
	return broker.Capabilities{System: "kafka", Prefix: true, KeyOrder: true, Groups: true, Redelivery: true, Durable: true}
}

// Cluster implements [broker.Clustered] with Kafka's cluster id. Clients ask for it once a
// minute, so that one that has taken another's place is known by its own.
func (b *Broker) Cluster() string {
	b.mu.Lock()
	known := b.cluster
	var client *kgo.Client
	if n := len(b.idle); n > 0 {
		client = b.idle[n-1].client
	}
	b.mu.Unlock()
	if client == nil {
		return known
	}
	known = cmp.Or(clusterOf(client), known) // Without the lock: calls need it to begin.
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cluster = known
	return known
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
	p, err := b.take()
	if err != nil {
		return err
	}
	defer b.put(p)
	c := newCall(b.conf.MaxMessageBytes, messages)
	p.publish(ctx, c, c.all())
	return c.err()
}

func (b *Broker) take() (*producer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.idle); n > 0 {
		p := b.idle[n-1]
		b.idle = b.idle[:n-1]
		if p.broken { // kgo may wait for connections of meanwhile.
			p.broken = false
			p.wire.cut()
		}
		return p, nil
	}
	return b.conf.producer()
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
