// Package brokertest is the suite that every adapter of package broker passes.
// It asserts what a broker's Capabilities and Config.Declared declare, and only that: what
// isn't declared is named in the log of the subtest Left. The guide to writing an adapter
// is docs/guides/writing-an-adapter.md.
package brokertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
)

// Config is what the suite has to know about an adapter.
type Config struct {
	// Open opens one more connection to the same server and the same messages.
	// The suite closes it. Several may be open at once; the first opened is
	// closed last. Required.
	Open func(t *testing.T) broker.Broker
	// Declared is what the adapter promises beyond its Capabilities.
	Declared Declared
	// Stop stops the server under open connections; start brings it back with
	// its data and returns when it answers. Nil leaves out what needs it.
	Stop func(t *testing.T) (start func())
	// TooLarge is a size of body, in bytes, that the broker refuses for good. 0
	// leaves out what needs it.
	TooLarge int
	// Fail makes message id fail with a class until the subtest ends, for the
	// classes that the adapter's tests can produce at will. It is in addition
	// to TooLarge.
	Fail map[broker.Class]func(t *testing.T, b broker.Broker, id string)
	// CreateGroup creates a group of a topic before anything is published there, for
	// brokers of queues, which give a group only what comes after it. Nil: a group
	// that joins later starts at the oldest message.
	CreateGroup func(t *testing.T, topic, group string)
	// Name returns a topic or a group that was never used before. Defaults to
	// "brokertest." and random letters.
	Name func(t *testing.T) string
	// Wait bounds every wait. Defaults to 60 s.
	Wait time.Duration
}

// Declared is what an adapter promises, or needs, beyond [broker.Capabilities]. What is
// declared is asserted; what can be told from outside has to be declared if it is there.
type Declared struct {
	// Outage: publishing to a server that is down fails as [broker.Unavailable], so
	// that an outage costs no attempt. It needs Config.Stop.
	Outage bool
	// Scopes: failures have a scope: that of a body that is too large is the row, that
	// of a topic that doesn't exist the topic, that of a server that is down the
	// broker.
	Scopes bool
	// AutoTopics: publishing to a topic that doesn't exist creates it.
	AutoTopics bool
	// Standby: one member of a group receives at a time, and the others wait to take
	// its place.
	Standby bool
	// OneOut: a consumer may have to settle a message before it gets another one, so
	// that keys aren't handled side by side.
	OneOut bool
	// Lag: consumers are [broker.Lagging].
	Lag bool
	// State: consumers are [broker.Stateful].
	State bool
	// Published: deliveries have the time of their publication.
	Published bool
	// Partition: deliveries to the only member of a group have a partition.
	Partition bool
	// Transactions: the broker is [broker.Transactional].
	Transactions bool
}

// Run runs the suite as subtests of t. Of each that fails the log says its contract, what
// can't be kept without it, and what to do.
func Run(t *testing.T, c Config) {
	require.NotNil(t, c.Open, "brokertest: Config.Open is missing: give a func that connects to the server under test")
	require.False(t, c.Declared.Outage && c.Stop == nil, "brokertest: Config.Declared.Outage can't be shown without Config.Stop: give a func that stops the server, or don't declare it")
	if c.Name == nil {
		c.Name = func(*testing.T) string { return "brokertest." + uuid.NewString()[:8] }
	}
	if c.Wait == 0 {
		c.Wait = time.Minute
	}
	s := suite{c, map[string][]string{}}
	t.Run("Publish", s.publish)
	t.Run("Partial", s.partial)
	t.Run("Consume", s.consume)
	t.Run("Redelivery", s.redelivery)
	t.Run("Groups", s.groups)
	t.Run("Lag", s.lag)
	t.Run("State", s.state)
	t.Run("Transactions", s.transactions)
	t.Run("Restart", s.restart)
	t.Run("Left", s.left)
}

type suite struct {
	Config
	groupsOf map[string][]string // Groups by topic that nobody has joined.
}

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
	if s.CreateGroup != nil {
		const most = 3 // of any subtest
		for range most {
			group := s.Name(t)
			s.CreateGroup(t, topic, group)
			s.groupsOf[topic] = append(s.groupsOf[topic], group)
		}
	}
	return topic
}

// group is a new group of a topic of [suite.topic], and gets all of it.
func (s suite) group(t *testing.T, topic string) string {
	t.Helper()
	if s.CreateGroup == nil {
		return s.Name(t)
	}
	groups := s.groupsOf[topic]
	require.NotEmpty(t, groups, "brokertest: more groups than were declared")
	s.groupsOf[topic] = groups[1:]
	return groups[0]
}

// join joins a group; the subtest's end leaves it, if leave didn't.
func (s suite) join(t *testing.T, b broker.Broker, topic, group string) *member {
	t.Helper()
	c, err := b.Consume(s.ctx(t), topic, group)
	require.NoError(t, err)
	m := &member{Consumer: c}
	t.Cleanup(func() { s.leave(t, m) })
	return m
}

type member struct {
	broker.Consumer
	left sync.Once
}

func (s suite) leave(t *testing.T, m *member) {
	t.Helper()
	m.left.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), s.Wait)
		defer cancel()
		require.NoError(t, m.Close(ctx))
	})
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

// send publishes, and all is stored.
func (s suite) send(t *testing.T, b broker.Broker, all ...broker.Message) {
	t.Helper()
	for _, call := range waves(b, all) {
		require.NoError(t, b.Publish(s.ctx(t), call))
	}
}

// results is what a call says of each of its n messages.
func results(err error, n int) []error {
	each := make([]error, n)
	partly, ok := errors.AsType[*broker.PublishError](err)
	for i := range each {
		if !ok {
			each[i] = err
			continue
		}
		failure, failed := partly.Failed[i]
		if failed && failure == nil {
			failure = errors.New("brokertest: a PublishError names a message without its error")
		}
		each[i] = failure
	}
	return each
}

// until waits for a condition, in the test's own goroutine.
func (s suite) until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	ctx := s.ctx(t)
	for !condition() {
		select {
		case <-time.After(tick):
		case <-ctx.Done():
			require.FailNow(t, "brokertest: waited in vain", what)
		}
	}
}

const (
	tick  = 20 * time.Millisecond
	quiet = time.Second // nothing comes any more
)

// stored reads what a topic has of the keys of sent. It proves that nothing else
// is to come by one more message of each key, which arrives last where there is
// KeyOrder; without it, nothing else may come for a while.
func (s suite) stored(t *testing.T, b broker.Broker, topic string, sent []broker.Message) []string {
	t.Helper()
	last := map[string]bool{}
	known := map[string]bool{}
	var ends []broker.Message
	for _, m := range sent {
		if !known[m.Key] {
			known[m.Key] = true
			end := message(topic, m.Key, "end")
			last[end.ID] = true
			ends = append(ends, end)
		}
	}
	s.send(t, b, ends...)
	c := s.join(t, b, topic, s.group(t, topic))
	defer s.leave(t, c)
	var ids []string
	left := len(ends)
	ctx := s.ctx(t)
	for {
		within := ctx
		if left == 0 {
			if b.Capabilities().KeyOrder {
				return ids
			}
			var cancel context.CancelFunc
			within, cancel = context.WithTimeout(ctx, quiet)
			defer cancel()
		}
		deliveries, err := c.Receive(within, 100)
		if left == 0 && errors.Is(err, context.DeadlineExceeded) {
			return ids
		}
		require.NoError(t, err)
		for _, d := range deliveries {
			if last[d.ID] {
				left--
			} else {
				ids = append(ids, d.ID)
			}
		}
		require.NoError(t, c.Ack(ctx, deliveries...))
	}
}

// requireScope is for adapters that say it.
func (s suite) requireScope(t *testing.T, want broker.Scope, err error) {
	t.Helper()
	if s.Declared.Scopes {
		require.Equal(t, want, broker.ScopeOf(err), "the scope of: %v", err)
	}
}

// requireTruth compares what a call answered with what the topic holds.
func requireTruth(t *testing.T, sent []broker.Message, each []error, stored []string) {
	t.Helper()
	for i, err := range each {
		switch {
		case err == nil:
			require.Contains(t, stored, sent[i].ID, "message %d was reported stored", i)
		case broker.ClassOf(err) != broker.Unknown:
			require.NotContains(t, stored, sent[i].ID, "message %d was refused: %v", i, err)
		}
	}
}

// receive takes deliveries until n different messages have come, and returns
// them in the order of their first arrival. It hands every delivery to each.
func (s suite) receive(t *testing.T, c broker.Consumer, n int, each func(broker.Delivery)) []broker.Delivery {
	t.Helper()
	const limit = 100
	ctx := s.ctx(t)
	var got []broker.Delivery
	seen := map[string]bool{}
	for len(got) < n {
		deliveries, err := c.Receive(ctx, limit)
		require.NoError(t, err, "%d of %d messages came", len(got), n)
		require.NotEmpty(t, deliveries, "Receive waits for at least one message")
		require.LessOrEqual(t, len(deliveries), limit, "Receive returns at most limit")
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

// take receives n messages and acknowledges each.
func (s suite) take(t *testing.T, c broker.Consumer, n int) []broker.Delivery {
	t.Helper()
	ctx := s.ctx(t)
	return s.receive(t, c, n, func(d broker.Delivery) { require.NoError(t, c.Ack(ctx, d)) })
}

const withoutKeyOrder = "Capabilities.KeyOrder promises that they come as they were published; without it consumers get an aggregate's events in another " +
	"order than it raised them. Keep a key with one member and one request at a time, or leave KeyOrder out and have handlers that need no order"

// requireKeyOrder compares the order of arrival with that of publishing, key by
// key.
func requireKeyOrder(t *testing.T, sent []broker.Message, got []broker.Delivery) {
	t.Helper()
	position := map[string]int{}
	for i, m := range sent {
		position[m.ID] = i
	}
	last := map[string]int{}
	for _, d := range got {
		at, ours := position[d.ID]
		require.True(t, ours, "a message came that nobody sent: %s", d.ID)
		before, known := last[d.Key]
		require.True(t, !known || before < at, "key %s: message %d came after message %d. %s", d.Key, at, before, withoutKeyOrder)
		last[d.Key] = at
	}
}

func ids(deliveries []broker.Delivery) []string {
	all := make([]string, len(deliveries))
	for i, d := range deliveries {
		all[i] = d.ID
	}
	return all
}

func sentIDs(messages []broker.Message) []string {
	all := make([]string, len(messages))
	for i, m := range messages {
		all[i] = m.ID
	}
	return all
}
