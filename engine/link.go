package engine

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/outbox"
)

// link is a broker to which nothing is published before its topics are known to
// exist. A broker that is down when the engine starts thus costs no row an
// attempt: the lane's breaker tries until it is back.
type link struct {
	broker.Broker
	name   string
	topics []string
	bodies int // The largest that contexts commit for it; unbounded: of any size.
	log    *slog.Logger

	mu      sync.Mutex
	ensured bool
	running *attempt        // at EnsureTopics, if there is one
	foreign map[string]bool // topics beside these that are known to exist

	usable *cached[error]
}

// unbounded is the size of bodies without a limit.
const unbounded = math.MaxInt

// carries notes the largest body that a context commits for this broker; 0: it has
// no limit.
func (l *link) carries(bytes int) {
	if bytes == 0 {
		bytes = unbounded
	}
	l.bodies = max(l.bodies, bytes)
}

// compare warns where a context may commit what the broker's server refuses: such a
// row could only be abandoned.
func (l *link) compare() {
	b, ok := l.Broker.(broker.Limiting)
	if !ok || l.bodies == 0 {
		return
	}
	limit := b.MaxMessage()
	if limit == 0 || l.bodies < limit-outbox.BesideBody {
		return
	}
	allowed := "any size"
	if l.bodies != unbounded {
		allowed = fmt.Sprint(l.bodies)
	}
	l.log.Warn("the broker's server takes smaller messages than a unit of work may commit; a larger one is abandoned: raise the server's limit (max_payload on NATS), or lower outbox.max_message_bytes (uow.Config.MaxMessageBytes)",
		"broker", l.name, "server_takes", limit, "body_may_have", allowed, "lower_to", limit-outbox.BesideBody)
}

// attempt is a call whose result all get that come while it is out.
type attempt struct {
	done chan struct{}
	err  error
}

func (l *link) add(topics ...string) {
	l.topics = slices.Compact(slices.Sorted(slices.Values(append(l.topics, topics...))))
}

// ensure creates the topics that are missing, until it succeeded once.
func (l *link) ensure(ctx context.Context) error {
	l.mu.Lock()
	if l.ensured || len(l.topics) == 0 {
		l.mu.Unlock()
		return nil
	}
	a := l.running
	if a != nil {
		l.mu.Unlock()
		select {
		case <-a.done:
			return a.err
		case <-ctx.Done():
			return fmt.Errorf("its topics are being created: %w", context.Cause(ctx))
		}
	}
	a = &attempt{done: make(chan struct{})}
	l.running = a
	l.mu.Unlock()
	if err := l.EnsureTopics(ctx, l.topics...); err != nil {
		behind := ""
		if prefix := l.Capabilities().TopicPrefix; prefix != "" {
			behind = fmt.Sprintf(" behind topic_prefix %q", prefix) // it may be what is refused
		}
		a.err = fmt.Errorf("create topics %q%s: %w", l.topics, behind, err)
	}
	l.mu.Lock()
	l.ensured, l.running = a.err == nil, nil
	l.mu.Unlock()
	if a.err == nil {
		l.compare() // Now the server has been asked for something, so its limit is known.
	}
	close(a.done)
	return a.err
}

func (l *link) Publish(ctx context.Context, messages []broker.Message) error {
	if err := l.prepare(ctx, messages); err != nil {
		return err
	}
	return l.Broker.Publish(ctx, messages)
}

// prepare sees to it that the topics are there.
func (l *link) prepare(ctx context.Context, messages []broker.Message) error {
	err := l.ensure(ctx)
	if err == nil {
		err = l.ensureForeign(ctx, messages)
	}
	// Whatever kept the topics from being created: nothing was sent.
	return broker.Scoped(broker.Unavailable, broker.ScopeBroker, err)
}

// transactionalLink is a link to a broker that has transactions.
type transactionalLink struct {
	*link
	broker.Transactional
}

// lane is what an outbox publishes to.
func (l *link) lane() broker.Broker {
	if b, ok := l.Broker.(broker.Transactional); ok {
		return transactionalLink{l, b}
	}
	return l
}

// Cluster implements [broker.Clustered], for brokers that know it.
func (l *link) Cluster() string {
	if b, ok := l.Broker.(broker.Clustered); ok {
		return b.Cluster()
	}
	return ""
}

// Transact implements [broker.Transactional].
func (l transactionalLink) Transact(ctx context.Context, id string) (broker.Transactor, broker.Mark, error) {
	tx, mark, err := l.Transactional.Transact(ctx, id)
	if err != nil {
		return nil, broker.Mark{}, err
	}
	return linked{tx, l.link}, mark, nil
}

// linked is a transactor of a link.
type linked struct {
	broker.Transactor
	link *link
}

func (l linked) Publish(ctx context.Context, mark broker.Mark, messages []broker.Message) error {
	if err := l.link.prepare(ctx, messages); err != nil {
		return err
	}
	return l.Transactor.Publish(ctx, mark, messages)
}

// ensureForeign creates the topics of messages that are of no context of this
// engine: a lane publishes for all contexts of its database, whose own engines
// may not run. It fails only if the broker isn't there. Of a topic that can't be
// created the broker says the rest.
func (l *link) ensureForeign(ctx context.Context, messages []broker.Message) error {
	for _, topic := range l.unknown(messages) {
		err := l.EnsureTopics(ctx, topic)
		if err != nil && broker.ClassOf(err) == broker.Unavailable {
			return fmt.Errorf("create topic %q: %w", topic, err)
		}
		if err == nil {
			l.mu.Lock()
			l.foreign[topic] = true
			l.mu.Unlock()
		}
	}
	return nil
}

func (l *link) unknown(messages []broker.Message) (topics []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, m := range messages {
		if i > 0 && m.Topic == messages[i-1].Topic || l.foreign[m.Topic] || slices.Contains(l.topics, m.Topic) || slices.Contains(topics, m.Topic) {
			continue
		}
		topics = append(topics, m.Topic)
	}
	return topics
}
