package brokertest

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
)

func (s suite) redelivery(t *testing.T) {
	if b := s.open(t); !b.Capabilities().Redelivery {
		return
	}
	if s.Declared.OneOut {
		s.check(t, "OneOut", s.oneOut)
		return
	}
	s.check(t, "AfterClose", func(t *testing.T) {
		b := s.open(t)
		topic := s.topic(t, b)
		group := s.group(t, topic)
		sent := messages(topic, 20, 20)
		s.send(t, b, sent...)
		c := s.join(t, b, topic, group)
		got := s.receive(t, c, len(sent), nil)
		require.NoError(t, c.Ack(s.ctx(t), got[:10]...))
		s.leave(t, c)

		last := message(topic, "last", "")
		s.send(t, b, last)
		again := s.again(t, b, topic, group, append(ids(got[10:]), last.ID))
		require.Subset(t, again, ids(got[10:]), "what wasn't acknowledged comes again")
	})
	s.check(t, "AckedDoesNotComeAgain", func(t *testing.T) {
		b := s.open(t)
		topic := s.topic(t, b)
		group := s.group(t, topic)
		sent := messages(topic, 50, 10)
		s.send(t, b, sent...)
		c := s.join(t, b, topic, group)
		got := s.receive(t, c, len(sent), nil)
		for _, d := range slices.Backward(got) {
			require.NoError(t, c.Ack(s.ctx(t), d))
		}
		s.leave(t, c)
		require.Empty(t, s.afterwards(t, b, topic, group, sent))
	})
	s.check(t, "AckNeverRunsAhead", func(t *testing.T) {
		b := s.open(t)
		topic := s.topic(t, b)
		group := s.group(t, topic)
		sent := messages(topic, 5, 1)
		s.send(t, b, sent...)
		c := s.join(t, b, topic, group)
		got := map[string]broker.Delivery{}
		for _, d := range s.receive(t, c, len(sent), nil) {
			got[d.ID] = d
		}
		require.NoError(t, c.Ack(s.ctx(t), got[sent[2].ID]))
		require.NoError(t, c.Ack(s.ctx(t), got[sent[0].ID]))
		s.leave(t, c)

		again := s.again(t, b, topic, group, []string{sent[1].ID, sent[3].ID, sent[4].ID})
		require.NotContains(t, again, sent[0].ID, "nothing before it was unfinished")
	})
	// C-76, C-79 requeue
	s.check(t, "AfterRelease", func(t *testing.T) {
		b := s.open(t)
		topic := s.topic(t, b)
		group := s.group(t, topic)
		sent := messages(topic, 30, 5)
		s.send(t, b, sent...)
		c := s.join(t, b, topic, group)
		held := s.receive(t, c, len(sent), nil)
		require.NoError(t, c.Release(s.ctx(t), held...))
		again := s.take(t, c, len(sent))
		require.ElementsMatch(t, sentIDs(sent), ids(again), "what was released comes again")
		if b.Capabilities().KeyOrder {
			requireKeyOrder(t, sent, again)
		}
		s.leave(t, c)
		require.Empty(t, s.afterwards(t, b, topic, group, sent))
	})
	s.check(t, "ReleasedToo_AfterClose", func(t *testing.T) {
		b := s.open(t)
		topic := s.topic(t, b)
		group := s.group(t, topic)
		sent := messages(topic, 10, 10)
		s.send(t, b, sent...)
		c := s.join(t, b, topic, group)
		held := s.receive(t, c, len(sent), nil)
		require.NoError(t, c.Release(s.ctx(t), held[3:]...))
		s.leave(t, c)
		s.again(t, b, topic, group, sentIDs(sent))
	})
	// C-79 stop_and_restart_listeners: messages keep coming while consumers stop and
	// start, in the middle of their work.
	s.check(t, "StopAndRestart_C79", func(t *testing.T) {
		b := s.open(t)
		topic := s.topic(t, b)
		group := s.group(t, topic)
		sent := messages(topic, 80, 8)
		finished := map[string]bool{}
		for round := range 4 {
			c := s.join(t, b, topic, group)
			s.send(t, b, sent[20*round:20*round+10]...)
			held := s.receive(t, c, 20*(round+1)-10-len(finished), nil)
			for _, d := range held[:len(held)/2] {
				require.NoError(t, c.Ack(s.ctx(t), d))
				finished[d.ID] = true
			}
			s.leave(t, c)
			s.send(t, b, sent[20*round+10:20*round+20]...)
		}
		c := s.join(t, b, topic, group)
		for _, d := range s.take(t, c, len(sent)-len(finished)) {
			require.False(t, finished[d.ID], "it was acknowledged, in order")
			finished[d.ID] = true
		}
		require.Len(t, finished, len(sent))
	})
	s.check(t, "InKeyOrderAfterClose", func(t *testing.T) {
		b := s.open(t)
		if !b.Capabilities().KeyOrder {
			return
		}
		topic := s.topic(t, b)
		group := s.group(t, topic)
		sent := messages(topic, 60, 6)
		s.send(t, b, sent[:30]...)
		c := s.join(t, b, topic, group)
		s.receive(t, c, 30, nil)
		s.send(t, b, sent[30:]...)
		s.leave(t, c)
		requireKeyOrder(t, sent, s.take(t, s.join(t, b, topic, group), len(sent)))
	})
}

// oneOut is for consumers that may have one message out at a time only: what is
// released comes again, and so does what a consumer had when it left; what was
// acknowledged doesn't.
func (s suite) oneOut(t *testing.T) {
	b := s.open(t)
	topic := s.topic(t, b)
	group := s.group(t, topic)
	ordered, keys := b.Capabilities().KeyOrder, 6
	if ordered {
		keys = 1
	}
	sent := messages(topic, 6, keys)
	s.send(t, b, sent...)
	c := s.join(t, b, topic, group)
	ctx := s.ctx(t)
	next := func() broker.Delivery {
		got, err := c.Receive(ctx, 1)
		require.NoError(t, err)
		require.Len(t, got, 1)
		return got[0]
	}
	finished := map[string]bool{}
	finish := func(d broker.Delivery) {
		require.NoError(t, c.Ack(ctx, d))
		finished[d.ID] = true
	}
	finish(next())
	released := next()
	require.NoError(t, c.Release(ctx, released))
	again := next()
	for !ordered && again.ID != released.ID {
		finish(again)
		again = next()
	}
	require.Equal(t, released.ID, again.ID, "what is released comes again, before its followers")
	s.leave(t, c)

	var want []string
	for _, m := range sent {
		if !finished[m.ID] {
			want = append(want, m.ID)
		}
	}
	came := s.again(t, b, topic, group, want)
	require.ElementsMatch(t, want, came, "what was not acknowledged comes again, and only that")
	if ordered {
		require.Equal(t, want, came)
	}
}

// again joins group anew, waits for all of want, acknowledges what comes, and
// returns it.
func (s suite) again(t *testing.T, b broker.Broker, topic, group string, want []string) []string {
	t.Helper()
	missing := map[string]bool{}
	for _, id := range want {
		missing[id] = true
	}
	c := s.join(t, b, topic, group)
	defer s.leave(t, c)
	ctx := s.ctx(t)
	var came []string
	for len(missing) > 0 {
		deliveries, err := c.Receive(ctx, 100)
		require.NoError(t, err, "%d of %d messages didn't come again", len(missing), len(want))
		for _, d := range deliveries {
			came = append(came, d.ID)
			delete(missing, d.ID)
		}
		require.NoError(t, c.Ack(ctx, deliveries...))
	}
	return came
}

// afterwards returns what group still gets of sent before one more message of
// each key.
func (s suite) afterwards(t *testing.T, b broker.Broker, topic, group string, sent []broker.Message) []string {
	t.Helper()
	ends := map[string]broker.Message{}
	for _, m := range sent {
		ends[m.Key] = message(topic, m.Key, "end")
	}
	var want []string
	for _, end := range ends {
		s.send(t, b, end)
		want = append(want, end.ID)
	}
	var rest []string
	for _, id := range s.again(t, b, topic, group, want) {
		for _, m := range sent {
			if m.ID == id {
				rest = append(rest, id)
			}
		}
	}
	return rest
}
