package brokertest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
)

// transactions are of a broker that is [broker.Transactional].
func (s suite) transactions(t *testing.T) {
	s.check(t, "Declared", func(t *testing.T) {
		_, is := s.open(t).(broker.Transactional)
		requireDeclared(t, "Transactions", s.Declared.Transactions, is, "the broker is broker.Transactional")
	})
	if !s.Declared.Transactions || t.Failed() {
		return
	}
	s.check(t, "StoresAllWithItsMark", s.transacts)
	s.check(t, "FencesWhoHadTheID", s.fences)
	if s.TooLarge > 0 {
		s.check(t, "StoresNothingIfOneFails", s.takesBack)
	}
}

// transact opens an id, and closes it with the subtest.
func (s suite) transact(t *testing.T, b broker.Broker, id string) (broker.Transactor, broker.Mark) {
	t.Helper()
	tx, mark, err := b.(broker.Transactional).Transact(s.ctx(t), id)
	require.NoError(t, err)
	t.Cleanup(tx.Close)
	return tx, mark
}

// id is a transactional id that was never used.
func id() string { return "waybill.brokertest-" + uuid.NewString()[:8] }

func (s suite) transacts(t *testing.T) {
	b := s.open(t)
	topic, name := s.topic(t, b), id()
	tx, mark := s.transact(t, b, name)
	require.Zero(t, mark)
	note := strings.Repeat("n", 4000)
	require.NoError(t, tx.Publish(s.ctx(t), broker.Mark{N: 3, Note: note}, s.run(topic, 3)))
	require.NoError(t, tx.Publish(s.ctx(t), broker.Mark{N: 4}, s.run(topic, 3)))
	_, mark = s.transact(t, b, name)
	require.Equal(t, broker.Mark{N: 4}, mark)
	_, mark = s.transact(t, b, id())
	require.Zero(t, mark, "of another id")
	s.holds(t, b, topic, 6)
}

func (s suite) fences(t *testing.T) {
	b := s.open(t)
	topic, name := s.topic(t, b), id()
	old, _ := s.transact(t, b, name)
	require.NoError(t, old.Publish(s.ctx(t), broker.Mark{N: 1, Note: "one"}, s.run(topic, 1)))
	young, mark := s.transact(t, b, name)
	require.Equal(t, broker.Mark{N: 1, Note: "one"}, mark)
	err := old.Publish(s.ctx(t), broker.Mark{N: 2}, s.run(topic, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, broker.ErrUndecided)
	require.NoError(t, young.Publish(s.ctx(t), broker.Mark{N: 3}, s.run(topic, 1)))
	require.Error(t, old.Publish(s.ctx(t), broker.Mark{N: 4}, s.run(topic, 1)), "it is of no more use")
	_, mark = s.transact(t, b, name)
	require.Equal(t, int64(3), mark.N)
	s.holds(t, b, topic, 2)
}

func (s suite) takesBack(t *testing.T) {
	b := s.open(t)
	topic, name := s.topic(t, b), id()
	tx, _ := s.transact(t, b, name)
	messages := s.run(topic, 4)
	messages[1].Body = make([]byte, s.TooLarge)
	messages[2].Key = messages[1].Key
	err := tx.Publish(s.ctx(t), broker.Mark{N: 1}, messages)
	var failed *broker.PublishError
	require.ErrorAs(t, err, &failed)
	require.Len(t, failed.Failed, 4)
	require.Equal(t, broker.Permanent, broker.ClassOf(failed.Failed[1]))
	require.Equal(t, broker.Unavailable, broker.ClassOf(failed.Failed[2]))
	for _, i := range []int{0, 3} { // taken back, or not sent
		require.Equal(t, broker.Unavailable, broker.ClassOf(failed.Failed[i]))
		require.Equal(t, broker.ScopeRow, broker.ScopeOf(failed.Failed[i]))
	}
	tx, mark := s.transact(t, b, name)
	require.Zero(t, mark)
	require.NoError(t, tx.Publish(s.ctx(t), broker.Mark{N: 2}, []broker.Message{messages[0], messages[3]}))
	s.holds(t, b, topic, 2)
}

// run is n messages of as many keys.
func (s suite) run(topic string, n int) (all []broker.Message) {
	for i := range n {
		all = append(all, broker.Message{ID: uuid.NewString(), Topic: topic, Key: fmt.Sprint("key-", i), Body: fmt.Append(nil, i), Headers: map[string]string{"type": "t"}})
	}
	return all
}

// holds waits until a new group has got n messages, and what was published behind them
// comes next.
func (s suite) holds(t *testing.T, b broker.Broker, topic string, n int) {
	t.Helper()
	last := s.run(topic, 1)
	require.NoError(t, b.Publish(s.ctx(t), last))
	c, err := b.Consume(s.ctx(t), topic, s.Name(t))
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close(context.WithoutCancel(t.Context()))) }()
	var got []string
	for seen := false; !seen || len(got) < n+1; {
		deliveries, err := c.Receive(s.ctx(t), 100)
		require.NoError(t, err)
		for _, d := range deliveries {
			got = append(got, d.ID)
			seen = seen || d.ID == last[0].ID
		}
		require.NoError(t, c.Ack(s.ctx(t), deliveries...))
	}
	require.Len(t, got, n+1)
}
