package engine

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/waybill-go/waybill/broker"
)

// link is a broker to which nothing is published before its topics are known to
// exist. A broker that is down when the engine starts thus costs no row an
// attempt: the lane's breaker tries until it is back.
type link struct {
	broker.Broker
	name   string
	topics []string

	mu      sync.Mutex
	ensured bool
	running *attempt // at EnsureTopics, if there is one

	usable *cached[error]
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
		a.err = fmt.Errorf("create topics %q: %w", l.topics, err)
	}
	l.mu.Lock()
	l.ensured, l.running = a.err == nil, nil
	l.mu.Unlock()
	close(a.done)
	return a.err
}

func (l *link) Publish(ctx context.Context, messages []broker.Message) error {
	if err := l.ensure(ctx); err != nil {
		// Whatever kept the topics from being created: nothing was sent.
		return &broker.Error{Of: broker.Unavailable, Err: err}
	}
	return l.Broker.Publish(ctx, messages)
}
