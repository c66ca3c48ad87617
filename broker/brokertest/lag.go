package brokertest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
)

// lag is for consumers that are [broker.Lagging], and says that they are if one
// is.
func (s suite) lag(t *testing.T) {
	s.check(t, "Declared", func(t *testing.T) {
		b := s.open(t)
		topic := s.topic(t, b)
		_, is := s.join(t, b, topic, s.group(t, topic)).Consumer.(broker.Lagging)
		requireDeclared(t, "Lag", s.Declared.Lag, is, "consumers are broker.Lagging")
	})
	if !s.Declared.Lag || t.Failed() {
		return
	}
	s.check(t, "Counts", func(t *testing.T) {
		b := s.open(t)
		topic := s.topic(t, b)
		c := s.join(t, b, topic, s.group(t, topic))
		s.lags(t, 0, c)
		sent := messages(topic, 30, 5)
		s.send(t, b, sent[:20]...)
		s.lags(t, 20, c)
		held := s.receive(t, c, 20, nil)
		s.lags(t, 20, c)
		require.NoError(t, c.Ack(s.ctx(t), held[3], held[7], held[19]))
		s.lags(t, 17, c)
		require.NoError(t, c.Ack(s.ctx(t), held[3]), "again")
		require.NoError(t, c.Release(s.ctx(t), append(held[:3:3], held[4:7]...)...))
		s.lags(t, 17, c)
		s.send(t, b, sent[20:]...)
		s.lags(t, 27, c)
		require.NoError(t, c.Ack(s.ctx(t), append(held[8:19:19], s.receive(t, c, 16, nil)...)...))
		s.lags(t, 0, c)

		idle := s.join(t, b, topic, s.group(t, topic))
		s.lags(t, 30, idle)
		s.take(t, idle, 30)
		s.lags(t, 0, idle)
	})
	s.check(t, "Closed", func(t *testing.T) {
		b := s.open(t)
		topic := s.topic(t, b)
		c := s.join(t, b, topic, s.group(t, topic))
		s.leave(t, c)
		_, err := c.Consumer.(broker.Lagging).Lag(s.ctx(t))
		require.Error(t, err)
	})
	// Far more than a consumer takes ahead, to one that doesn't receive.
	s.check(t, "Behind", func(t *testing.T) {
		b := s.open(t)
		topic := s.topic(t, b)
		c := s.join(t, b, topic, s.group(t, topic))
		sent := 0
		for range 4 {
			all := messages(topic, 200, 1)
			for i := range all {
				all[i].Body = make([]byte, 10_000)
			}
			s.send(t, b, all...)
			sent += len(all)
			s.lags(t, sent, c)
		}
		s.take(t, c, sent)
		s.lags(t, 0, c)
	})
	s.check(t, "AfterTheOthersLeft", func(t *testing.T) {
		one, two := s.open(t), s.open(t)
		if !one.Capabilities().Redelivery {
			return
		}
		topic := s.topic(t, one)
		group := s.group(t, topic)
		sent := messages(topic, 60, 20)
		s.send(t, one, sent...)
		first := s.join(t, one, topic, group)
		held := s.receive(t, first, 60, nil)
		second := s.join(t, two, topic, group)
		require.NoError(t, first.Ack(s.ctx(t), held[0]))
		s.leave(t, first)
		s.lags(t, 59, second)
		s.take(t, second, 59)
		s.lags(t, 0, second)
		more := message(topic, "more", "")
		s.send(t, one, more)
		s.lags(t, 1, second)
		s.take(t, second, 1)
		s.lags(t, 0, second)
	})
}

// lags waits until m says a lag of want. At first it may not know.
func (s suite) lags(t *testing.T, want int, m *member) {
	t.Helper()
	ctx := s.ctx(t)
	for {
		lag, err := m.Consumer.(broker.Lagging).Lag(ctx)
		if err == nil && lag == int64(want) {
			return
		}
		select {
		case <-time.After(tick):
		case <-ctx.Done():
			require.FailNow(t, "brokertest: the lag stays wrong", "%d instead of %d, error %v", lag, want, err)
		}
	}
}
