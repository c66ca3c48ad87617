// Package brokertest is the suite that every adapter of package broker passes.
// It asserts what a broker's Capabilities declare, and only that.
package brokertest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
)

// Harness is what the suite has to know about an adapter.
type Harness struct {
	// Open opens one more connection to the same server and the same messages.
	// The suite closes it. Several may be open at once; the first opened is
	// closed last. Required.
	Open func(t *testing.T) broker.Broker
	// Stop stops the server under open connections; start brings it back with
	// its data and returns when it answers. Nil leaves out what needs it.
	Stop func(t *testing.T) (start func())
	// TooLarge is a size of body, in bytes, that the broker refuses for good. 0
	// leaves out what needs it.
	TooLarge int
	// Fail makes message id fail with a class from now on, for the classes that
	// the adapter's tests can produce at will. It is in addition to TooLarge.
	Fail map[broker.Class]func(t *testing.T, b broker.Broker, id string)
	// AutoTopics says that publishing to a topic that doesn't exist creates it.
	AutoTopics bool
	// Name returns a topic or a group that was never used before. Defaults to
	// "brokertest." and random letters.
	Name func(t *testing.T) string
	// Wait bounds every wait. Defaults to 60 s.
	Wait time.Duration
}

// Run runs the suite as subtests of t.
func Run(t *testing.T, h Harness) {
	require.NotNil(t, h.Open, "brokertest: Harness.Open is missing: give a func that connects to the server under test")
	if h.Name == nil {
		h.Name = func(*testing.T) string { return "brokertest." + uuid.NewString()[:8] }
	}
	if h.Wait == 0 {
		h.Wait = time.Minute
	}
	s := suite{h}
	t.Run("Publish", s.publish)
	t.Run("Consume", s.consume)
}

type suite struct{ Harness }

// open connects, and closes when the subtest ends.
func (s suite) open(t *testing.T) broker.Broker {
	t.Helper()
	b := s.Open(t)
	t.Cleanup(func() { s.close(t, b) })
	return b
}

func (s suite) close(t *testing.T, b broker.Broker) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), s.Wait)
	defer cancel()
	require.NoError(t, b.Close(ctx))
}

// ctx is bounded by Wait: a call that hangs fails the test instead of the run.
func (s suite) ctx(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), s.Wait)
	t.Cleanup(cancel)
	return ctx
}

// topic is a new topic that exists.
func (s suite) topic(t *testing.T, b broker.Broker) string {
	t.Helper()
	topic := s.Name(t)
	require.NoError(t, b.EnsureTopics(s.ctx(t), topic))
	return topic
}

func (s suite) join(t *testing.T, b broker.Broker, topic, group string) broker.Consumer {
	t.Helper()
	c, err := b.Consume(s.ctx(t), topic, group)
	require.NoError(t, err)
	return c
}

func (s suite) leave(t *testing.T, c broker.Consumer) {
	t.Helper()
	require.NoError(t, c.Close(s.ctx(t)))
}

func message(topic, key, body string) broker.Message {
	return broker.Message{
		ID: uuid.NewString(), Topic: topic, Key: key, Body: []byte(body),
		Headers: map[string]string{"type": "Test.Happened.v1", "content-type": "text/plain"},
	}
}

// messages makes n messages over keys in turn; the bodies count from 0.
func messages(topic string, n, keys int) []broker.Message {
	all := make([]broker.Message, n)
	for i := range all {
		all[i] = message(topic, fmt.Sprintf("key-%d", i%keys), fmt.Sprint(i))
	}
	return all
}

// waves cuts messages into calls that the broker's Prefix allows.
func waves(b broker.Broker, all []broker.Message) [][]broker.Message {
	if b.Capabilities().Prefix {
		return [][]broker.Message{all}
	}
	var calls [][]broker.Message
	depth := map[string]int{}
	for _, m := range all {
		n := depth[m.Key]
		depth[m.Key]++
		if n == len(calls) {
			calls = append(calls, nil)
		}
		calls[n] = append(calls[n], m)
	}
	return calls
}

func (s suite) send(t *testing.T, b broker.Broker, all ...broker.Message) {
	t.Helper()
	for _, call := range waves(b, all) {
		require.NoError(t, b.Publish(s.ctx(t), call))
	}
}

// receive takes deliveries until n messages that differ have come, hands each to
// each, and returns them in the order of their first arrival.
func (s suite) receive(t *testing.T, c broker.Consumer, n int, each func(broker.Delivery)) []broker.Delivery {
	t.Helper()
	ctx := s.ctx(t)
	var got []broker.Delivery
	seen := map[string]bool{}
	for len(got) < n {
		deliveries, err := c.Receive(ctx, 100)
		require.NoError(t, err, "%d of %d messages came", len(got), n)
		require.NotEmpty(t, deliveries, "Receive waits for at least one message")
		require.LessOrEqual(t, len(deliveries), 100, "Receive returns at most limit")
		for _, d := range deliveries {
			if !seen[d.ID] {
				seen[d.ID] = true
				got = append(got, d)
			}
			if each != nil {
				each(d)
			}
		}
	}
	return got
}

// take receives n messages and acknowledges them.
func (s suite) take(t *testing.T, c broker.Consumer, n int) []broker.Delivery {
	t.Helper()
	return s.receive(t, c, n, func(d broker.Delivery) { require.NoError(t, c.Ack(s.ctx(t), d)) })
}

func bodies(deliveries []broker.Delivery) []string {
	all := make([]string, len(deliveries))
	for i, d := range deliveries {
		all[i] = string(d.Body)
	}
	return all
}
