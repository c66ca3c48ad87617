package brokertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
)

func (s suite) groups(t *testing.T) {
	if b := s.open(t); !b.Capabilities().Groups {
		return
	}
	s.check(t, "EachGetsAll", func(t *testing.T) {
		b := s.open(t)
		topic := s.topic(t, b)
		one, two := s.join(t, b, topic, s.group(t, topic)), s.join(t, b, topic, s.group(t, topic))
		sent := messages(topic, 40, 8)
		s.send(t, b, sent...)
		require.ElementsMatch(t, sentIDs(sent), ids(s.take(t, one, len(sent))))
		require.ElementsMatch(t, sentIDs(sent), ids(s.take(t, two, len(sent))))
	})
	s.check(t, "OneNameOnTwoTopics", func(t *testing.T) {
		b := s.open(t)
		group := s.Name(t)
		for range 2 {
			topic := s.topic(t, b)
			sent := messages(topic, 10, 10)
			c := s.join(t, b, topic, group)
			s.send(t, b, sent...)
			require.ElementsMatch(t, sentIDs(sent), ids(s.take(t, c, len(sent))))
		}
	})
	// C-77: who reads all of a topic under a name of its own doesn't move the
	// position of those who are at work on it.
	s.check(t, "OwnPosition_C77", func(t *testing.T) {
		b := s.open(t)
		if !b.Capabilities().Redelivery || s.Declared.OneOut {
			return
		}
		topic := s.topic(t, b)
		group := s.group(t, topic)
		sent := messages(topic, 20, 1)
		s.send(t, b, sent...)
		c := s.join(t, b, topic, group)
		held := s.receive(t, c, 20, nil)
		require.NoError(t, c.Ack(s.ctx(t), held[:10]...))
		replay := s.join(t, b, topic, s.group(t, topic))
		require.ElementsMatch(t, sentIDs(sent), ids(s.take(t, replay, 20)))
		s.leave(t, replay)
		for _, d := range held[10:] {
			require.False(t, lost(d))
		}
		s.leave(t, c)
		require.ElementsMatch(t, ids(held[10:]), s.again(t, b, topic, group, ids(held[10:])))
	})
	s.check(t, "Partitions_S0_20", s.inPartitions)
	s.check(t, "MembersShare", s.membersShare)
	s.check(t, "MembersComeAndGo", s.membersComeAndGo)
}

// inPartitions is for brokers that say in which part of a topic a message is: the
// next member gets all of it that is not acknowledged, in its order, before what
// comes later.
func (s suite) inPartitions(t *testing.T) {
	b := s.open(t)
	if !s.Declared.Partition || !b.Capabilities().Redelivery {
		return
	}
	topic := s.topic(t, b)
	group := s.group(t, topic)
	sent := messages(topic, 60, 20)
	s.send(t, b, sent...)
	first := s.join(t, b, topic, group)
	of, left := map[string]string{}, map[string][]string{}
	for i, d := range s.receive(t, first, 60, nil) {
		require.NotEmpty(t, d.Partition)
		if p, known := of[d.Key]; known {
			require.Equal(t, p, d.Partition, "a key is in one partition")
		}
		of[d.Key] = d.Partition
		if i%2 == 0 {
			require.NoError(t, first.Ack(s.ctx(t), d))
		} else {
			left[d.Partition] = append(left[d.Partition], d.ID)
		}
	}
	s.leave(t, first)
	later := messages(topic, 20, 20)
	s.send(t, b, later...)
	second := s.join(t, b, topic, group)
	got := map[string][]string{}
	missing := map[string]bool{}
	for _, id := range slices.Concat(slices.Concat(slices.Collect(maps.Values(left))...), sentIDs(later)) {
		missing[id] = true
	}
	for ctx := s.ctx(t); len(missing) > 0; {
		deliveries, err := second.Receive(ctx, 7)
		require.NoError(t, err)
		for _, d := range deliveries { // and some that were acknowledged, where the broker has only an offset
			require.Equal(t, of[d.Key], d.Partition)
			got[d.Partition] = append(got[d.Partition], d.ID)
			delete(missing, d.ID)
		}
	}
	for p, want := range left {
		again := slices.DeleteFunc(slices.Clone(got[p]), func(id string) bool { return !slices.Contains(want, id) })
		require.Equal(t, want, again, "in the same order")
		end := slices.Index(got[p], want[len(want)-1])
		for _, m := range later {
			if i := slices.Index(got[p], m.ID); i >= 0 {
				require.Greater(t, i, end, "what comes again comes first")
			}
		}
	}
}

// crew is the members of one group, each received from and acknowledged by its
// own goroutine until it is told to go.
type crew struct {
	breaks bool // Connections break: an acknowledgement may fail.

	mu     sync.Mutex
	first  []broker.Delivery // In the order of arrival.
	held   map[string]broker.Delivery
	by     []int // Deliveries by member.
	errs   []error
	unfair []string // Delivered twice without being taken back.
}

func (s suite) hire(t *testing.T, w *crew, b broker.Broker, topic, group string) (dismiss func()) {
	t.Helper()
	w.mu.Lock()
	number := len(w.by)
	w.by = append(w.by, 0)
	if w.held == nil {
		w.held = map[string]broker.Delivery{}
	}
	w.mu.Unlock()

	c := s.join(t, b, topic, group)
	ctx, stop := context.WithCancel(s.ctx(t))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			deliveries, err := c.Receive(ctx, 10)
			if errors.Is(err, context.Canceled) {
				return
			}
			w.arrived(number, deliveries, err)
			if err != nil {
				return
			}
			// A delivery that was taken back, or whose connection broke, can't always
			// be acknowledged: it comes again.
			for _, d := range deliveries {
				if err := c.Ack(context.WithoutCancel(ctx), d); err != nil && !lost(d) && !w.breaks {
					w.arrived(number, nil, fmt.Errorf("ack: %w", err))
					return
				}
			}
		}
	}()
	return func() {
		stop()
		<-done
		s.leave(t, c)
	}
}

func (w *crew) arrived(number int, deliveries []broker.Delivery, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.errs = append(w.errs, err)
	}
	w.by[number] += len(deliveries)
	for _, d := range deliveries {
		before, again := w.held[d.ID]
		w.held[d.ID] = d
		switch {
		case !again:
			w.first = append(w.first, d)
		case !lost(before):
			w.unfair = append(w.unfair, d.ID)
		}
	}
}

func lost(d broker.Delivery) bool {
	select {
	case <-d.Lost:
		return true
	default:
		return false
	}
}

func (w *crew) has(n int, members ...int) func() bool {
	return func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, m := range members {
			if w.by[m] == 0 {
				return false
			}
		}
		return len(w.first) >= n || len(w.errs) > 0
	}
}

func (s suite) membersShare(t *testing.T) {
	one, two := s.open(t), s.open(t)
	topic := s.topic(t, one)
	group := s.group(t, topic)
	var w crew
	dismissOne := s.hire(t, &w, one, topic, group)
	dismissTwo := s.hire(t, &w, two, topic, group)

	// Until both have had some, the group is still finding together.
	var sent []broker.Message
	both := w.has(0, 0, 1)
	if s.Declared.Standby {
		both = w.has(1)
	}
	s.until(t, "both members get messages", func() bool {
		more := messages(topic, 50, 50)
		sent = append(sent, more...)
		s.send(t, one, more...)
		return both()
	})
	more := messages(topic, 500, 50)
	sent = append(sent, more...)
	s.send(t, one, more...)
	s.until(t, "the group gets all", w.has(len(sent)))
	dismissOne()
	dismissTwo()

	require.Empty(t, w.errs)
	require.ElementsMatch(t, sentIDs(sent), ids(w.first), "the group gets all")
	require.Empty(t, w.unfair, "a message is with one member at a time")
	require.True(t, !s.Declared.Standby || w.by[0] == 0 || w.by[1] == 0, "Config.Declared.Standby says that one member receives at a time; deliveries by member: %v", w.by)
	if one.Capabilities().KeyOrder {
		requireKeyOrder(t, sent, w.first)
	}
}

func (s suite) membersComeAndGo(t *testing.T) {
	b, other := s.open(t), s.open(t)
	topic := s.topic(t, b)
	group := s.group(t, topic)
	var w crew
	var sent []broker.Message
	send := func() {
		more := messages(topic, 100, 20)
		sent = append(sent, more...)
		s.send(t, b, more...)
	}
	first := s.hire(t, &w, b, topic, group)
	send()
	s.until(t, "the first member gets messages", w.has(1))
	second := s.hire(t, &w, other, topic, group)
	send()
	first()
	send()
	s.until(t, "the second member takes over", w.has(len(sent), 1))
	third := s.hire(t, &w, b, topic, group)
	send()
	second()
	send()
	s.until(t, "the third member takes over", w.has(len(sent), 2))
	third()

	require.Empty(t, w.errs)
	require.ElementsMatch(t, sentIDs(sent), ids(w.first))
	if b.Capabilities().KeyOrder {
		requireKeyOrder(t, sent, w.first)
	}
}
