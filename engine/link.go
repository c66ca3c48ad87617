package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/waybill-go/waybill/broker"
)

// link is a broker to which nothing is published before its topics are known to
// exist. A broker that is down when the engine starts thus costs no row an
// attempt: the lane's breaker tries until it is back.
type link struct {
	broker.Broker
	name   string
	topics []string

	ensured atomic.Bool
	mu      sync.Mutex // one call of EnsureTopics at a time
	usable  *cached[error]
}

func (l *link) add(topics ...string) {
	l.topics = slices.Compact(slices.Sorted(slices.Values(append(l.topics, topics...))))
}

var errEnsuring = errors.New("its topics are being created")

// ensure creates the topics that are missing, until it succeeded once.
func (l *link) ensure(ctx context.Context) error {
	if l.ensured.Load() || len(l.topics) == 0 {
		return nil
	}
	if !l.mu.TryLock() {
		return errEnsuring
	}
	defer l.mu.Unlock()
	if l.ensured.Load() {
		return nil
	}
	if err := l.EnsureTopics(ctx, l.topics...); err != nil {
		return fmt.Errorf("create topics %q: %w", l.topics, err)
	}
	l.ensured.Store(true)
	return nil
}

func (l *link) Publish(ctx context.Context, messages []broker.Message) error {
	if err := l.ensure(ctx); err != nil {
		// Whatever kept the topics from being created: nothing was sent.
		return &broker.Error{Of: broker.Unavailable, Err: err}
	}
	return l.Broker.Publish(ctx, messages)
}
