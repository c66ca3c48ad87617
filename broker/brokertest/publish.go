package brokertest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/waybill-go/waybill/broker"
)

func (s suite) publish(t *testing.T) {
	s.check(t, "RoundTrip", s.roundTrip)
	s.check(t, "Nothing", func(t *testing.T) {
		require.NoError(t, s.open(t).Publish(s.ctx(t), nil))
	})
	s.check(t, "ThousandOverFiftyKeys", func(t *testing.T) {
		b := s.open(t)
		topic := s.topic(t, b)
		sent := messages(topic, 1000, 50)
		s.send(t, b, sent...)
		got := s.take(t, s.join(t, b, topic, s.group(t, topic)), len(sent))
		require.ElementsMatch(t, sentIDs(sent), ids(got))
		if b.Capabilities().KeyOrder {
			requireKeyOrder(t, sent, got)
		}
	})
	s.check(t, "Concurrently", s.concurrently)
	s.check(t, "Dedup", func(t *testing.T) {
		b := s.open(t)
		if !b.Capabilities().Dedup {
			return
		}
		topic := s.topic(t, b)
		m := message(topic, "key", "body")
		s.send(t, b, m)
		s.send(t, b, m)
		other := s.open(t)
		s.send(t, other, m)
		require.Equal(t, []string{m.ID}, s.stored(t, b, topic, []broker.Message{m}))
	})
	s.check(t, "EnsureTopicsAgain", func(t *testing.T) {
		b, other := s.open(t), s.open(t)
		topic := s.topic(t, b)
		m := message(topic, "key", "body")
		s.send(t, b, m)
		require.NoError(t, b.EnsureTopics(s.ctx(t)))
		require.NoError(t, b.EnsureTopics(s.ctx(t), topic, s.Name(t), topic))
		fresh := s.Name(t)
		var g errgroup.Group
		for _, b := range []broker.Broker{b, other} {
			g.Go(func() error { return b.EnsureTopics(s.ctx(t), topic, fresh) })
		}
		require.NoError(t, g.Wait())
		require.Equal(t, []string{m.ID}, s.stored(t, b, topic, []broker.Message{m}), "a topic that exists keeps its messages")
	})
	// F-28: what no topic takes is a failure.
	s.check(t, "UnknownTopic_F28", func(t *testing.T) {
		if s.Declared.AutoTopics {
			return
		}
		b := s.open(t)
		known := s.topic(t, b)
		sent := []broker.Message{message(known, "a", "1"), message(s.Name(t), "b", "2"), message(known, "c", "3")}
		ctx := s.ctx(t)
		each := results(b.Publish(ctx, sent), len(sent))
		require.NoError(t, ctx.Err(), "publishing to an unknown topic must not hang")
		require.Error(t, each[1])
		require.NotEqual(t, broker.Permanent, broker.ClassOf(each[1]), "somebody can create the topic")
		s.requireScope(t, broker.ScopeTopic, each[1])
		requireTruth(t, []broker.Message{sent[0], sent[2]}, []error{each[0], each[2]}, s.stored(t, b, known, sent))
	})
	s.check(t, "ContextDone", func(t *testing.T) {
		b := s.open(t)
		topic := s.topic(t, b)
		done, cancel := context.WithCancel(s.ctx(t))
		cancel()
		sent := messages(topic, 3, 3)
		each := results(b.Publish(done, sent), len(sent))
		for _, err := range each {
			require.Error(t, err)
		}
		requireTruth(t, sent, each, s.stored(t, b, topic, sent))
	})
}

func (s suite) roundTrip(t *testing.T) {
	b := s.open(t)
	topic := s.topic(t, b)
	binary := make([]byte, 256)
	for i := range binary {
		binary[i] = byte(i)
	}
	large := make([]byte, 200_000)
	for i := range large {
		large[i] = byte(i * 7)
	}
	headers := map[string]string{
		"type": "Ordering.OrderPlaced.v1", "content-type": "application/json", "correlation-id": "c:1=2;3",
		"tenant-id": "Łódź, 東京 🚚", "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
	}
	sent := []broker.Message{
		{Key: "text", Body: []byte(`{"data": "ü"}`), Headers: headers},
		{Key: "binary", Body: binary},
		{Key: "empty", Headers: map[string]string{"type": "T"}},
		{Key: "large", Body: large, Headers: headers},
		{Key: "ключ 鍵/with spaces", Body: []byte("key")},
	}
	for i := range sent {
		m := message(topic, "", "")
		sent[i].ID, sent[i].Topic = m.ID, topic
	}
	event := message(topic, "event", "")
	event.CloudEvent = map[string]string{"id": event.ID, "subject": "o-1", "source": "/a%20b", "zone": "Łódź 100%"}
	sent = append(sent, event)
	before := time.Now()
	s.send(t, b, sent...)
	after := time.Now()
	got := map[string]broker.Delivery{}
	for _, d := range s.take(t, s.join(t, b, topic, s.group(t, topic)), len(sent)) {
		got[d.ID] = d
	}
	for _, m := range sent {
		d, ok := got[m.ID]
		require.True(t, ok, "the message of key %q came under its id", m.Key)
		require.Equal(t, topic, d.Topic)
		require.Equal(t, m.Key, d.Key)
		if len(m.Body) == 0 {
			require.Empty(t, d.Body)
		} else {
			require.Equal(t, m.Body, d.Body)
		}
		require.Equal(t, s.Declared.Partition, d.Partition != "", "the partition")
		require.Equal(t, s.Declared.Published, !d.Published.IsZero(), "the time of publication")
		if s.Declared.Published {
			// Brokers count in milliseconds, and have a clock of their own.
			require.WithinRange(t, d.Published, before.Add(-time.Second), after.Add(time.Second))
		}
		for name, value := range m.Headers {
			require.Equal(t, value, d.Headers[name], "header %s", name)
		}
	}
	for name, value := range event.CloudEvent {
		headers := got[event.ID].Headers
		require.Equal(t, value, headers["ce_"+name]+headers["ce-"+name], "attribute %s, by the name that the protocol's binding gives it", name)
	}
	require.Empty(t, got[event.ID].CloudEvent)
}

func (s suite) concurrently(t *testing.T) {
	const publishers, calls, size = 8, 20, 5
	b := s.open(t)
	topic := s.topic(t, b)
	ctx := s.ctx(t)
	var sent []broker.Message
	var g errgroup.Group
	for p := range publishers {
		mine := make([][]broker.Message, calls)
		for c := range mine {
			for k := range size {
				mine[c] = append(mine[c], message(topic, fmt.Sprintf("%d-%d", p, k), fmt.Sprint(c)))
			}
			sent = append(sent, mine[c]...)
		}
		g.Go(func() error {
			for _, call := range mine {
				if err := b.Publish(ctx, call); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
	got := s.take(t, s.join(t, b, topic, s.group(t, topic)), len(sent))
	require.ElementsMatch(t, sentIDs(sent), ids(got))
	if b.Capabilities().KeyOrder {
		requireKeyOrder(t, sent, got)
	}
}
