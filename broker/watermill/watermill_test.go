package watermill_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/watermill"
	"github.com/waybill-go/waybill/internal/waittest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func open(t *testing.T, conf watermill.Config) *watermill.Broker {
	t.Helper()
	b, err := watermill.New(conf)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close(bounded(t))) })
	return b
}

// shared is a subscriber that stays open with its Pub/Sub.
type shared struct{ message.Subscriber }

func (shared) Close() error { return nil }

// Go channels keep no order, have no groups and remember no acknowledgement, so
// there is little to promise: what is published arrives, and comes again until
// it is acknowledged. (The suite needs order to know that nothing else is to
// come.)
func TestGoChannel(t *testing.T) {
	pubsub := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, nil)
	t.Cleanup(func() { require.NoError(t, pubsub.Close()) })
	b := open(t, watermill.Config{
		Publisher:  pubsub,
		Subscriber: func(string) (message.Subscriber, error) { return shared{pubsub}, nil },
	})
	sent := map[string]broker.Message{}
	var all []broker.Message
	for i := range 200 {
		m := broker.Message{
			ID: uuid.NewString(), Topic: "topic", Key: fmt.Sprint("key-", i%20), Body: fmt.Append(nil, i),
			Headers: map[string]string{"type": "Test.Happened.v1"},
		}
		all, sent[m.ID] = append(all, m), m
	}
	require.NoError(t, b.Publish(bounded(t), all))
	c, err := b.Consume(bounded(t), "topic", "group")
	require.NoError(t, err)
	released := map[string]bool{}
	for len(sent) > 0 {
		got, err := c.Receive(bounded(t), 7)
		require.NoError(t, err)
		require.NotEmpty(t, got)
		require.LessOrEqual(t, len(got), 7)
		for _, d := range got {
			require.Equal(t, sent[d.ID], d.Message)
			if !released[d.ID] {
				released[d.ID] = true
				require.NoError(t, c.Release(bounded(t), d))
				continue
			}
			require.NoError(t, c.Ack(bounded(t), d))
			delete(sent, d.ID)
		}
	}
	ctx, cancel := context.WithTimeout(bounded(t), 50*time.Millisecond)
	defer cancel()
	_, err = c.Receive(ctx, 1)
	require.ErrorIs(t, err, context.DeadlineExceeded, "nothing comes again after it was acknowledged")
	_, err = c.Receive(ctx, 1)
	require.ErrorIs(t, err, context.DeadlineExceeded, "nor with a context that was done before")
}

func publish(t *testing.T, b broker.Broker, topic string, from, n int) {
	t.Helper()
	for i := range n {
		require.NoError(t, b.Publish(bounded(t), []broker.Message{{ID: uuid.NewString(), Topic: topic, Key: "key", Body: fmt.Append(nil, from+i)}}))
	}
}

func receive(t *testing.T, c broker.Consumer) broker.Delivery {
	t.Helper()
	got, err := c.Receive(bounded(t), 10)
	require.NoError(t, err)
	require.Len(t, got, 1, "a partition has one message out")
	return got[0]
}

// publisher is scripted.
type publisher struct {
	mu    sync.Mutex
	order []string
	do    func(m *message.Message) error
}

func (p *publisher) Publish(_ string, messages ...*message.Message) error {
	if err := p.do(messages[0]); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.order = append(p.order, messages[0].UUID)
	return nil
}

func (*publisher) Close() error { return nil }

func call(ids ...string) []broker.Message {
	var all []broker.Message
	for _, id := range ids {
		all = append(all, broker.Message{ID: id, Topic: "topic", Key: id[:1]})
	}
	return all
}

func failures(t *testing.T, err error) map[int]error {
	t.Helper()
	var e *broker.PublishError
	require.ErrorAs(t, err, &e)
	return e.Failed
}

// S1-11: a failure ends its key and nothing else, with a class for each message.
func TestPublish_MiddleFails_S1_11(t *testing.T) {
	for name, tc := range map[string]struct {
		err   error
		want  broker.Class
		scope broker.Scope
	}{
		"plain":   {errors.New("refused"), broker.Transient, broker.ScopeUnknown},
		"classed": {broker.Classify(broker.Permanent, errors.New("refused")), broker.Permanent, broker.ScopeUnknown},
		"scoped":  {broker.Scoped(broker.Transient, broker.ScopeTopic, errors.New("refused")), broker.Transient, broker.ScopeTopic},
		"context": {context.DeadlineExceeded, broker.Unknown, broker.ScopeUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			p := &publisher{do: func(m *message.Message) error {
				if m.UUID == "a2" {
					return tc.err
				}
				return nil
			}}
			b := open(t, watermill.Config{Publisher: p})
			failed := failures(t, b.Publish(bounded(t), call("a1", "b1", "a2", "a3", "b2", "c1")))
			require.Len(t, failed, 2)
			require.Equal(t, tc.want, broker.ClassOf(failed[2]))
			require.Equal(t, tc.scope, broker.ScopeOf(failed[2]))
			require.Equal(t, broker.Unavailable, broker.ClassOf(failed[3]), "it wasn't sent")
			require.ErrorIs(t, failed[2], tc.err)
			require.ErrorContains(t, failed[3], "earlier message")
			require.ElementsMatch(t, []string{"a1", "b1", "b2", "c1"}, p.order)
		})
	}
}

func TestPublish_Classify_S1_11(t *testing.T) {
	refused := errors.New("connection refused")
	p := &publisher{do: func(*message.Message) error { return refused }}
	b := open(t, watermill.Config{Publisher: p, Classify: func(err error) (broker.Class, broker.Scope) {
		require.Equal(t, refused, err)
		return broker.Unavailable, broker.ScopeTopic
	}})
	failed := failures(t, b.Publish(bounded(t), call("a1")))
	require.Equal(t, broker.Unavailable, broker.ClassOf(failed[0]))
	require.Equal(t, broker.ScopeTopic, broker.ScopeOf(failed[0]))
	require.ErrorIs(t, failed[0], refused)
}

// serial hands out the next message of a subscription when the one before it is
// settled.
type serial struct{ subscriptions []chan *message.Message }

func (s *serial) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	if len(s.subscriptions) == 3 {
		return nil, errors.New("no more")
	}
	out := make(chan *message.Message)
	s.subscriptions = append(s.subscriptions, out)
	go func() {
		defer close(out)
		for {
			m := message.NewMessage(uuid.NewString(), nil)
			select {
			case out <- m:
			case <-ctx.Done():
				return
			}
			select {
			case <-m.Acked():
			case <-m.Nacked():
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

func (*serial) Close() error { return nil }

func TestConsume_Subscriptions(t *testing.T) {
	conf := watermill.Config{
		Publisher: &publisher{}, Subscriptions: 3,
		Subscriber: func(string) (message.Subscriber, error) { return &serial{}, nil },
	}
	c, err := open(t, conf).Consume(bounded(t), "topic", "group")
	require.NoError(t, err)
	out := map[string]bool{}
	for len(out) < 3 {
		got, err := c.Receive(bounded(t), 10)
		require.NoError(t, err)
		for _, d := range got {
			out[d.ID] = true
		}
	}
	ctx, cancel := context.WithTimeout(bounded(t), 50*time.Millisecond)
	defer cancel()
	_, err = c.Receive(ctx, 1)
	require.ErrorIs(t, err, context.DeadlineExceeded, "as many as there are subscriptions")
	require.NoError(t, c.Close(bounded(t)))

	conf.Subscriptions = 4
	_, err = open(t, conf).Consume(bounded(t), "topic", "group")
	require.ErrorContains(t, err, "no more")
}

// The publisher hangs: the call ends with its context, and hands over nothing
// more.
func TestPublish_ContextDone(t *testing.T) {
	hangs, goOn := make(chan struct{}), make(chan struct{})
	p := &publisher{do: func(*message.Message) error {
		close(hangs)
		<-goOn
		return nil
	}}
	b, err := watermill.New(watermill.Config{Publisher: p, Concurrency: 1})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(bounded(t))
	go func() {
		<-hangs
		cancel()
	}()
	failed := failures(t, b.Publish(ctx, call("a1", "a2", "b1")))
	require.Equal(t, broker.Unknown, broker.ClassOf(failed[0]))
	require.Equal(t, broker.Unavailable, broker.ClassOf(failed[1]))
	require.Equal(t, broker.Unavailable, broker.ClassOf(failed[2]))

	require.ErrorIs(t, b.Close(ctx), context.Canceled, "it waits for the publisher, as long as it may")
	close(goOn)
	waittest.Until(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.order) == 1
	})
	require.ErrorIs(t, b.Publish(bounded(t), call("a1")), watermill.ErrClosed)
}

func TestPublish_Refused(t *testing.T) {
	p := &publisher{do: func(*message.Message) error { return nil }}
	b := open(t, watermill.Config{Publisher: p})
	all := append(call("a1", "b1", "c1", "d1"), broker.Message{ID: "e1", Topic: "topic"})
	all[1].Headers = map[string]string{watermill.KeyHeader: "x"}
	all[2].Topic = ""
	all[3].ID = ""
	failed := failures(t, b.Publish(bounded(t), all))
	require.Len(t, failed, 4)
	for _, err := range failed {
		require.Equal(t, broker.Permanent, broker.ClassOf(err))
	}
	require.Equal(t, []string{"a1"}, p.order)
}

func TestNew_Mistakes(t *testing.T) {
	_, err := watermill.New(watermill.Config{Concurrency: -1, Subscriptions: -1})
	require.ErrorContains(t, err, "Publisher is missing")
	require.ErrorContains(t, err, "Concurrency is -1")
	require.ErrorContains(t, err, "Subscriptions is -1")
	b := open(t, watermill.Config{Publisher: &publisher{}})
	_, err = b.Consume(bounded(t), "topic", "group")
	require.ErrorContains(t, err, "Subscriber is missing")
	require.Equal(t, broker.Capabilities{}, b.Capabilities())
	require.NoError(t, b.EnsureTopics(bounded(t), "topic"))
}

// hanging never subscribes until it is told to.
type hanging struct{ goOn, closed chan struct{} }

func (h hanging) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	<-h.goOn
	arrived := make(chan *message.Message)
	context.AfterFunc(ctx, func() { close(arrived) })
	return arrived, nil
}

func (h hanging) Close() error {
	close(h.closed)
	return nil
}

func TestConsume_ContextDone(t *testing.T) {
	h := hanging{make(chan struct{}), make(chan struct{})}
	b := open(t, watermill.Config{
		Publisher:  &publisher{},
		Subscriber: func(string) (message.Subscriber, error) { return h, nil },
	})
	ctx, cancel := context.WithCancel(bounded(t))
	cancel()
	_, err := b.Consume(ctx, "topic", "group")
	require.ErrorIs(t, err, context.Canceled)
	close(h.goOn)
	<-h.closed
}

func TestConsumer_Closed(t *testing.T) {
	pubsub := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, nil)
	b := open(t, watermill.Config{
		Publisher:  pubsub,
		Subscriber: func(string) (message.Subscriber, error) { return shared{pubsub}, nil },
	})
	publish(t, b, "topic", 0, 1)
	c, err := b.Consume(bounded(t), "topic", "group")
	require.NoError(t, err)
	d := receive(t, c)
	require.ErrorContains(t, c.Ack(bounded(t), broker.Delivery{}), "not delivered by this consumer")
	require.NoError(t, c.Close(bounded(t)))
	require.NoError(t, c.Close(bounded(t)), "again")
	<-d.Lost
	_, err = c.Receive(bounded(t), 1)
	require.ErrorIs(t, err, watermill.ErrClosed)
	require.ErrorIs(t, c.Ack(bounded(t), d), watermill.ErrClosed)
	require.NoError(t, pubsub.Close())
}
