package watermill_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/watermill"
	"github.com/waybill-go/waybill/internal/waittest"
)

// routed is a Pub/Sub, and a router in front of an inlet.
func routed(t *testing.T, before ...message.HandlerMiddleware) (b *watermill.Broker, inlet *watermill.Inlet) {
	t.Helper()
	pubsub := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, nil)
	b = open(t, watermill.Config{Publisher: pubsub})
	inlet = watermill.NewInlet()
	router := message.NewDefaultRouter(nil)
	router.AddMiddleware(before...)
	router.AddConsumerHandler("handler", "topic", pubsub, inlet.Handler("topic", "group"))
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	<-router.Running()
	t.Cleanup(func() {
		require.NoError(t, inlet.Close(bounded(t)))
		require.NoError(t, router.Close())
		require.NoError(t, <-ended)
		require.NoError(t, pubsub.Close())
	})
	return b, inlet
}

func join(t *testing.T, inlet *watermill.Inlet) broker.Consumer {
	t.Helper()
	c, err := inlet.Consume(bounded(t), "topic", "group")
	require.NoError(t, err)
	return c
}

// What a router's middleware lets pass is delivered, and what is released, or was out
// when the consumer left, comes again.
func TestInlet(t *testing.T) {
	b, inlet := routed(t, func(next message.HandlerFunc) message.HandlerFunc {
		return func(m *message.Message) ([]*message.Message, error) {
			m.Metadata.Set("seen-by", "middleware")
			return next(m)
		}
	})
	sent := map[string]broker.Message{}
	for i, m := range call("a1", "b1", "c1", "d1") {
		m.Body, m.Headers = []byte{byte(i)}, map[string]string{"type": "Test.Happened.v1"}
		require.NoError(t, b.Publish(bounded(t), []broker.Message{m}))
		m.Headers["seen-by"] = "middleware"
		sent[m.ID] = m
	}
	c := join(t, inlet)
	released := map[string]bool{}
	for len(sent) > 1 {
		got, err := c.Receive(bounded(t), 3)
		require.NoError(t, err)
		require.LessOrEqual(t, len(got), 3)
		for _, d := range got {
			require.Equal(t, sent[d.ID], d.Message)
			if !released[d.ID] {
				released[d.ID] = true
				require.NoError(t, c.Release(bounded(t), d))
				continue
			}
			if len(sent) > 1 {
				require.NoError(t, c.Ack(bounded(t), d))
				require.NoError(t, c.Ack(bounded(t), d), "again")
				delete(sent, d.ID)
			}
		}
	}
	require.NoError(t, c.Close(bounded(t)))
	require.NoError(t, c.Close(bounded(t)), "again")
	_, err := c.Receive(bounded(t), 1)
	require.ErrorIs(t, err, watermill.ErrClosed)

	c = join(t, inlet)
	last := receive(t, c)
	require.Contains(t, sent, last.ID)
	require.NoError(t, c.Ack(bounded(t), last))
	require.NoError(t, c.Close(bounded(t)))
	require.ErrorIs(t, c.Ack(bounded(t), last), watermill.ErrClosed)
	require.ErrorIs(t, c.Release(bounded(t), broker.Delivery{}), watermill.ErrClosed)
}

// A middleware that limits the time takes the message from the consumer.
func TestInlet_MiddlewareEndsMessage(t *testing.T) {
	b, inlet := routed(t, func(next message.HandlerFunc) message.HandlerFunc {
		return func(m *message.Message) ([]*message.Message, error) {
			ctx, cancel := context.WithTimeout(m.Context(), 50*time.Millisecond)
			defer cancel()
			m.SetContext(ctx)
			return next(m)
		}
	})
	c := join(t, inlet)
	require.NoError(t, b.Publish(bounded(t), call("a1")))
	d := receive(t, c)
	<-d.Lost
	require.NoError(t, c.Ack(bounded(t), d), "too late")
	require.Equal(t, d.ID, receive(t, c).ID)
}

// What is lost: one that drops what returned an error drops what was only given back.
func TestInlet_MiddlewareThatDrops(t *testing.T) {
	var dropped atomic.Int32
	b, inlet := routed(t, func(next message.HandlerFunc) message.HandlerFunc {
		return func(m *message.Message) ([]*message.Message, error) {
			if _, err := next(m); errors.Is(err, watermill.ErrReleased) {
				dropped.Add(1)
			}
			return nil, nil
		}
	})
	require.NoError(t, b.Publish(bounded(t), call("a1")))
	c := join(t, inlet)
	receive(t, c)
	require.NoError(t, c.Close(bounded(t)))
	waittest.Until(t, func() bool { return dropped.Load() == 1 })
	ctx, cancel := context.WithTimeout(bounded(t), 50*time.Millisecond)
	defer cancel()
	_, err := join(t, inlet).Receive(ctx, 1)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestInlet_Closed(t *testing.T) {
	inlet := watermill.NewInlet()
	c := join(t, inlet)
	require.ErrorContains(t, c.Ack(bounded(t), broker.Delivery{}), "not delivered by this consumer")
	handle := inlet.Handler("topic", "group")
	ctx, cancel := context.WithCancelCause(bounded(t))
	cancel(errors.New("the cause"))
	require.ErrorContains(t, handle(message.NewMessageWithContext(ctx, "1", nil)), "the cause", "nobody consumes")
	_, err := c.Receive(ctx, 1)
	require.ErrorIs(t, err, context.Canceled)

	waits := make(chan error)
	go func() { waits <- handle(message.NewMessage("1", nil)) }()
	require.NoError(t, inlet.Close(bounded(t)))
	require.NoError(t, inlet.Close(bounded(t)), "again")
	require.ErrorIs(t, <-waits, watermill.ErrClosed)
	_, err = c.Receive(bounded(t), 1)
	require.ErrorIs(t, err, watermill.ErrClosed)
	_, err = inlet.Consume(bounded(t), "topic", "group")
	require.Equal(t, broker.Unavailable, broker.ClassOf(err))

	require.Equal(t, broker.Permanent, broker.ClassOf(inlet.Publish(bounded(t), call("a1"))))
	require.NoError(t, inlet.EnsureTopics(bounded(t), "topic"))
	require.Equal(t, broker.Capabilities{}, inlet.Capabilities())
}
