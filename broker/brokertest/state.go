package brokertest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
)

// shows is how soon a consumer that gets nothing has to say so.
const shows = 10 * time.Second

// state is for consumers that are [broker.Stateful], and says that they are if one
// is.
func (s suite) state(t *testing.T) {
	s.check(t, "Declared", func(t *testing.T) {
		b := s.open(t)
		topic := s.topic(t, b)
		_, is := s.join(t, b, topic, s.group(t, topic)).Consumer.(broker.Stateful)
		requireDeclared(t, "State", s.Declared.State, is, "consumers are broker.Stateful")
	})
	if !s.Declared.State || t.Failed() {
		return
	}
	s.check(t, "Joined", func(t *testing.T) {
		one, two := s.open(t), s.open(t)
		topic := s.topic(t, one)
		group := s.group(t, topic)
		began := time.Now()
		first := s.join(t, one, topic, group)
		at := s.well(t, first)
		require.WithinRange(t, at.Since, began, time.Now())
		second := s.join(t, two, topic, group)
		s.well(t, second) // It shares the topic, or stands by.
		s.well(t, first)
		s.send(t, one, messages(topic, 5, 5)...)
		require.Zero(t, s.well(t, first).Missed)

		s.leave(t, first)
		left := stateOf(first)
		require.False(t, left.Joined, "it has left its group")
		require.WithinRange(t, left.Since, at.Since, time.Now())
		s.well(t, second)
	})
	if s.Stop == nil {
		return
	}
	s.check(t, "Outage", func(t *testing.T) {
		b := s.open(t)
		topic := s.topic(t, b)
		c := s.join(t, b, topic, s.group(t, topic))
		s.well(t, c)
		start := s.Stop(t)
		stopped := time.Now()
		s.until(t, "it says that it isn't in its group, and why", func() bool {
			at := stateOf(c)
			return !at.Joined && at.LastError != nil
		})
		require.Less(t, time.Since(stopped), shows, "it says so soon")
		start()
		s.until(t, "it is in its group again", func() bool { return stateOf(c).Well() })
		require.True(t, stateOf(c).Since.After(stopped))
	})
}

// well waits until m is in its group, and nothing keeps it from receiving.
func (s suite) well(t *testing.T, m *member) broker.State {
	t.Helper()
	s.until(t, "it is in its group", func() bool { return stateOf(m).Well() })
	return stateOf(m)
}

func stateOf(m *member) broker.State { return m.Consumer.(broker.Stateful).State() }
