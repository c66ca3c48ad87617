// Package memory is a broker for tests: it keeps order, knows consumer groups,
// delivers again what was not acknowledged, records what it stored, and fails
// as it is told to.
package memory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/waybill-go/waybill/broker"
)

// Config says how the broker behaves while nothing fails.
type Config struct {
	// NoPrefix takes Capabilities.Prefix away: a call with two messages of one
	// key is refused.
	NoPrefix bool
	// Dedup stores a message that comes again under the same id once. Without
	// it, duplicates show.
	Dedup bool
	// ExactlyOnce has outboxes publish in transactions.
	ExactlyOnce bool
}

// Broker is one connection to a broker in memory. It is safe for concurrent
// use. Faults and records belong to the broker, not to the connection.
type Broker struct {
	*store
	consumers map[*consumer]struct{} // Guarded by store.mu, as is closed.
	closed    bool
}

var _ broker.Broker = (*Broker)(nil)

// New returns the first connection to a new broker, which is empty.
func New(cfg Config) *Broker {
	s := &store{cfg: cfg, topics: map[string]*topic{}, transactions: map[string]*transactions{}, changed: make(chan struct{})}
	return s.connect()
}

// Connect returns one more connection to the same broker, as a second process
// would have it. It outlives the first.
func (b *Broker) Connect() *Broker { return b.connect() }

func (s *store) connect() *Broker {
	return &Broker{store: s, consumers: map[*consumer]struct{}{}}
}

// store is what the connections share.
type store struct {
	cfg Config

	mu     sync.Mutex
	topics map[string]*topic
	// transactions by id
	transactions map[string]*transactions
	calls        []int
	faults       faults
	changed      chan struct{} // Closed, and replaced, when a consumer may have something to do.
}

type topic struct {
	log    []stored
	ids    map[string]struct{} // Only with Dedup.
	groups map[string]*group
}

type stored struct {
	broker.Message
	at time.Time
}

// notify wakes everybody who waits. The lock is held.
func (s *store) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// topic finds or makes a topic. The lock is held.
func (s *store) topic(name string) *topic {
	t := s.topics[name]
	if t == nil {
		t = &topic{ids: map[string]struct{}{}, groups: map[string]*group{}}
		s.topics[name] = t
	}
	return t
}

// store appends m. The lock is held.
func (t *topic) store(m broker.Message, dedup bool) {
	if dedup {
		if _, known := t.ids[m.ID]; known {
			return
		}
		t.ids[m.ID] = struct{}{}
	}
	for _, g := range t.groups {
		g.ready = append(g.ready, len(t.log))
	}
	t.log = append(t.log, stored{clone(m), time.Now()})
}

func clone(m broker.Message) broker.Message {
	m.Headers, m.CloudEvent = maps.Clone(m.NativeHeaders("ce-")), nil
	m.Body = slices.Clone(m.Body)
	return m
}

// Publish implements [broker.Publisher]. A topic that doesn't exist springs into
// being.
func (b *Broker) Publish(ctx context.Context, messages []broker.Message) error {
	if err := b.admit(ctx, len(messages)); err != nil {
		return err
	}
	failed := b.refused(messages)

	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.usable(); err != nil {
		return err
	}
	if err := b.faults.beforeStore(); err != nil {
		return err
	}
	for i, m := range messages {
		if failed[i] == nil {
			b.topic(m.Topic).store(m, b.cfg.Dedup)
		}
	}
	b.notify()
	if len(failed) < len(messages) {
		if err := b.faults.afterStore(); err != nil {
			return err
		}
	}
	if len(failed) > 0 {
		return &broker.PublishError{Failed: failed}
	}
	return nil
}

// admit records a call and holds it while the broker stalls.
func (b *Broker) admit(ctx context.Context, size int) error {
	b.mu.Lock()
	b.calls = append(b.calls, size)
	stalled := b.faults.stalled
	b.mu.Unlock()

	if err := ctx.Err(); err != nil {
		return broker.Classify(broker.Unavailable, fmt.Errorf("memory: nothing was sent: %w", err))
	}
	if stalled == nil {
		return nil
	}
	select {
	case <-stalled:
		return nil
	case <-ctx.Done():
		return broker.Classify(broker.Unknown, fmt.Errorf("memory: no answer: %w", ctx.Err()))
	}
}

// refused finds the messages that must not be stored: what is invalid or told to
// fail, and behind it, so that a key's messages stay a leading run, the rest of
// its key.
func (b *Broker) refused(messages []broker.Message) map[int]error {
	b.mu.Lock()
	where, down := b.faults.where, b.faults.topics
	b.mu.Unlock()

	failed := map[int]error{}
	keys := map[string]bool{} // Seen in this call, and whether cut.
	for i, m := range messages {
		cut, again := keys[m.Key]
		var err error
		switch {
		case m.ID == "" || m.Topic == "" || m.Key == "":
			err = broker.Scoped(broker.Permanent, broker.ScopeRow, errors.New("memory: a message needs an id, a topic and a key"))
		case again && b.cfg.NoPrefix:
			err = broker.Scoped(broker.Permanent, broker.ScopeRow, fmt.Errorf("memory: two messages of key %q in one call: without Prefix, send them in waves", m.Key))
		case cut:
			err = broker.Scoped(broker.Unavailable, broker.ScopeRow, fmt.Errorf("memory: not sent: a message before it of key %q failed", m.Key))
		case down[m.Topic]:
			err = broker.Scoped(broker.Transient, broker.ScopeTopic, fmt.Errorf("memory: topic %s is down", m.Topic))
		case where != nil:
			err = where(clone(m))
		}
		if err != nil {
			failed[i] = err
		}
		keys[m.Key] = cut || err != nil
	}
	return failed
}

var errClosed = broker.Scoped(broker.Unavailable, broker.ScopeBroker, errors.New("memory: the connection is closed"))

// EnsureTopics implements [broker.Broker].
func (b *Broker) EnsureTopics(_ context.Context, topics ...string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.usable(); err != nil {
		return err
	}
	for _, name := range topics {
		b.topic(name)
	}
	return nil
}

// usable says why a call can't be served. The lock is held.
func (b *Broker) usable() error {
	if b.closed {
		return errClosed
	}
	return b.faults.outageError()
}

// Capabilities implements [broker.Broker].
func (b *Broker) Capabilities() broker.Capabilities {
	return broker.Capabilities{
		System:     "memory",
		Prefix:     !b.cfg.NoPrefix,
		KeyOrder:   true,
		Groups:     true,
		Redelivery: true,
		Dedup:      b.cfg.Dedup,
	}
}

// Close closes the connection and the consumers that it opened. What was stored
// stays, for other connections and for [Broker.Messages].
func (b *Broker) Close(context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for c := range b.consumers {
		c.leave()
	}
	return nil
}

// Messages returns everything that was stored under a topic, duplicates
// included, in the order of its arrival.
func (b *Broker) Messages(topic string) []broker.Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.topics[topic]
	if t == nil {
		return nil
	}
	all := make([]broker.Message, len(t.log))
	for i, m := range t.log {
		all[i] = clone(m.Message)
	}
	return all
}

// Topics returns the names of the topics, sorted.
func (b *Broker) Topics() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(maps.Keys(b.topics))
}

// Calls returns how many messages each call of Publish had, in the order in
// which the calls began, the failed and the stalled included.
func (b *Broker) Calls() []int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.calls)
}

// Unacknowledged returns how many messages of a topic a group has still to
// acknowledge.
func (b *Broker) Unacknowledged(topic, group string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.topics[topic]
	if t == nil {
		return 0
	}
	if g := t.groups[group]; g != nil {
		return g.lag()
	}
	return len(t.log)
}
