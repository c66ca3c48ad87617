package brokertest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func (s suite) consume(t *testing.T) {
	s.check(t, "Limit", func(t *testing.T) {
		b := s.open(t)
		topic := s.topic(t, b)
		s.send(t, b, messages(topic, 20, 20)...)
		c := s.join(t, b, topic, s.group(t, topic))
		ctx := s.ctx(t)
		seen := map[string]bool{}
		for len(seen) < 20 {
			deliveries, err := c.Receive(ctx, 3)
			require.NoError(t, err)
			require.NotEmpty(t, deliveries)
			require.LessOrEqual(t, len(deliveries), 3)
			for _, d := range deliveries {
				seen[d.ID] = true
			}
			require.NoError(t, c.Ack(ctx, deliveries...))
		}
	})
	s.check(t, "NewGroupStartsAtTheOldest", func(t *testing.T) {
		b := s.open(t)
		topic := s.topic(t, b)
		sent := messages(topic, 30, 5)
		s.send(t, b, sent[:20]...)
		s.take(t, s.join(t, b, topic, s.group(t, topic)), 20)
		c := s.join(t, b, topic, s.group(t, topic))
		s.send(t, b, sent[20:]...)
		require.ElementsMatch(t, sentIDs(sent), ids(s.take(t, c, len(sent))))
	})
	s.check(t, "ContextDone", func(t *testing.T) {
		b := s.open(t)
		topic := s.topic(t, b)
		c := s.join(t, b, topic, s.group(t, topic))
		ctx, cancel := context.WithTimeout(s.ctx(t), 50*time.Millisecond)
		defer cancel()
		_, err := c.Receive(ctx, 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		_, err = c.Receive(ctx, 1)
		require.ErrorIs(t, err, context.DeadlineExceeded, "a context that was done before")

		m := message(topic, "key", "body")
		s.send(t, b, m)
		require.Equal(t, []string{m.ID}, ids(s.take(t, c, 1)), "the consumer goes on with the next context")
	})
}
