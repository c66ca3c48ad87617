package brokertest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
)

// partial is "the middle row of three fails", by every class that the adapter
// can produce, with a result for each message (S1-11).
func (s suite) partial(t *testing.T) {
	if s.TooLarge > 0 {
		s.check(t, "TooLarge_S1_11", func(t *testing.T) {
			err := s.middle(t, broker.Permanent, func(_ broker.Broker, m *broker.Message) {
				m.Body = []byte(strings.Repeat("x", s.TooLarge))
			})
			s.requireScope(t, broker.ScopeRow, err)
		})
	}
	for class, fail := range s.Fail {
		s.check(t, class.String()+"_S1_11", func(t *testing.T) {
			require.Error(t, s.middle(t, class, func(b broker.Broker, m *broker.Message) { fail(t, b, m.ID) }))
		})
	}
}

func (s suite) middle(t *testing.T, class broker.Class, spoil func(broker.Broker, *broker.Message)) error {
	t.Helper()
	b := s.open(t)
	topic := s.topic(t, b)
	call := []broker.Message{message(topic, "a", "1"), message(topic, "a", "2"), message(topic, "a", "3")}
	bad, behind := 1, 3
	if b.Capabilities().Prefix {
		call = []broker.Message{call[0], call[1], message(topic, "b", "1"), call[2], message(topic, "b", "2")}
	} else {
		call = []broker.Message{message(topic, "b", "1"), call[1], message(topic, "c", "1")}
		behind = -1
	}
	spoil(b, &call[bad])

	each := results(b.Publish(s.ctx(t), call), len(call))
	stored := s.stored(t, b, topic, call)
	require.Error(t, each[bad])
	require.Equal(t, class, broker.ClassOf(each[bad]), "%v", each[bad])
	requireTruth(t, call, each, stored)
	for i, m := range call {
		switch i {
		case bad:
		case behind:
			require.Error(t, each[i], "what stands behind a failure of its key isn't accepted")
			require.NotContains(t, stored, m.ID, "a key's messages are stored as a leading run")
		default:
			require.NoError(t, each[i], "message %d has nothing to do with the failure", i)
		}
	}
	return each[bad]
}
