package brokertest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func (s suite) publish(t *testing.T) {
	t.Run("RoundTrip", func(t *testing.T) {
		b := s.open(t)
		topic := s.topic(t, b)
		m := message(topic, "key", "body")
		s.send(t, b, m)
		c := s.join(t, b, topic, s.Name(t))
		got := s.take(t, c, 1)[0]
		s.leave(t, c)
		require.Equal(t, m.ID, got.ID)
		require.Equal(t, m.Topic, got.Topic)
		require.Equal(t, m.Key, got.Key)
		require.Equal(t, m.Body, got.Body)
		for name, value := range m.Headers {
			require.Equal(t, value, got.Headers[name], name)
		}
	})
}
