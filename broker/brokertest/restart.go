package brokertest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
)

func (s suite) restart(t *testing.T) {
	durable := s.open(t).Capabilities().Durable
	if durable {
		s.check(t, "Reopen", s.reopen)
	}
	if s.Stop == nil {
		return
	}
	s.check(t, "Outage", s.outage)
	if durable {
		s.check(t, "UnderLoad", s.underLoad)
	}
}

func (s suite) reopen(t *testing.T) {
	b := s.Open(t)
	topic := s.topic(t, b)
	group := s.group(t, topic)
	sent := messages(topic, 50, 10)
	s.send(t, b, sent...)
	c, err := b.Consume(s.ctx(t), topic, group)
	require.NoError(t, err)
	s.take(t, c, len(sent))
	require.NoError(t, c.Close(s.ctx(t)))
	s.close(t, b)

	b = s.open(t)
	require.Empty(t, s.afterwards(t, b, topic, group, sent), "the group's progress is kept")
	all := s.stored(t, b, topic, sent)
	require.Subset(t, all, sentIDs(sent), "the messages are kept")
}

// outage publishes before, while and after the server is down.
func (s suite) outage(t *testing.T) {
	b := s.open(t)
	topic := s.topic(t, b)
	sent := messages(topic, 10, 10)
	each := make([]error, len(sent))
	s.send(t, b, sent...)

	start := s.Stop(t)
	// A call that is on its way while the connection breaks is Unknown, and so
	// can the first one after it be.
	s.until(t, "the broker is Unavailable", func() bool {
		m := message(topic, "key-0", "down")
		ctx := s.ctx(t)
		err := results(b.Publish(ctx, []broker.Message{m}), 1)[0]
		require.Error(t, err, "the server is down")
		require.NoError(t, ctx.Err(), "publishing to a server that is down must not hang")
		sent, each = append(sent, m), append(each, err)
		if !s.Declared.Outage {
			return true
		}
		if broker.ClassOf(err) != broker.Unavailable {
			return false
		}
		s.requireScope(t, broker.ScopeBroker, err)
		return true
	})
	start()

	s.until(t, "the broker is reached again", func() bool {
		m := message(topic, "key-1", "up")
		err := results(b.Publish(s.ctx(t), []broker.Message{m}), 1)[0]
		sent, each = append(sent, m), append(each, err)
		return err == nil
	})
	requireTruth(t, sent, each, s.stored(t, b, topic, sent))
}

// underLoad restarts the server between publishers and a consumer, all of which
// continue by themselves. What was acknowledged arrives.
func (s suite) underLoad(t *testing.T) {
	const publishers, size = 4, 50
	b, reader := s.open(t), s.open(t)
	topic := s.topic(t, b)
	group := s.group(t, topic)

	w := crew{breaks: true}
	dismiss := s.hire(t, &w, reader, topic, group)
	var load load
	ctx := s.ctx(t)
	stop := make(chan struct{})
	for p := range publishers {
		load.Go(func() { load.publish(ctx, stop, b, topic, p, size) })
	}
	s.until(t, "publishers are at work", func() bool { return load.reached(1000) })
	s.Stop(t)()
	more := load.count() + 1000
	s.until(t, "publishers go on after the restart", func() bool { return load.reached(more) })
	close(stop)
	load.Wait()
	require.NoError(t, ctx.Err(), "every message was stored in the end")

	s.until(t, "the consumer goes on after the restart", w.has(load.count()))
	dismiss()
	require.Empty(t, w.errs)
	require.Subset(t, ids(w.first), sentIDs(load.stored), "what was acknowledged arrives")
	if b.Capabilities().KeyOrder {
		requireKeyOrder(t, load.stored, w.first)
	}
}

// load is publishers at work, and what the broker acknowledged to them.
type load struct {
	sync.WaitGroup
	mu     sync.Mutex
	stored []broker.Message
}

func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.stored)
}

func (l *load) reached(n int) bool { return l.count() >= n }

// publish sends call after call. What failed is tried again before the next of
// its key.
func (l *load) publish(ctx context.Context, stop <-chan struct{}, b broker.Broker, topic string, number, size int) {
	for n := 0; ; n++ {
		select {
		case <-stop:
			return
		default:
		}
		call := make([]broker.Message, size)
		for k := range call {
			call[k] = message(topic, fmt.Sprintf("%d-%d", number, k), fmt.Sprint(n))
		}
		for {
			call = l.try(ctx, b, call)
			if len(call) == 0 {
				break
			}
			select {
			case <-time.After(tick):
			case <-ctx.Done():
				return
			}
		}
	}
}

// try publishes and returns what failed.
func (l *load) try(ctx context.Context, b broker.Broker, call []broker.Message) []broker.Message {
	each := results(b.Publish(ctx, call), len(call))
	l.mu.Lock()
	defer l.mu.Unlock()
	var rest []broker.Message
	for i, m := range call {
		if each[i] == nil {
			l.stored = append(l.stored, m)
		} else {
			rest = append(rest, m)
		}
	}
	return rest
}
