package kafka_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/kafka"
)

// quiet keeps sarama's scripted servers from logging into the test.
type quiet struct{ testing.TB }

func (quiet) Logf(string, ...any) {}
func (quiet) Log(...any)          {}

// scripted are servers that answer as told: what a healthy Kafka never does.
type scripted struct {
	t       testing.TB
	servers []*sarama.MockBroker
}

func script(t testing.TB, n int) scripted {
	s := scripted{t: t}
	for i := range n {
		server := sarama.NewMockBroker(quiet{t}, int32(i))
		t.Cleanup(server.Close)
		s.servers = append(s.servers, server)
	}
	return s
}

// metadata says that the one partition of "topic" is led by a server, or by none
// for -1.
func (s scripted) metadata(leader int32) *sarama.MockMetadataResponse {
	m := sarama.NewMockMetadataResponse(s.t).SetLeader("topic", 0, leader)
	for _, server := range s.servers {
		m.SetBroker(server.Addr(), server.BrokerID())
	}
	return m
}

// answer sets the answers of all servers; those to produce one after the other.
func (s scripted) answer(metadata sarama.MockResponse, codes ...sarama.KError) {
	produce := make([]any, len(codes))
	for i, code := range codes {
		produce[i] = sarama.NewMockProduceResponse(s.t).SetError("topic", 0, code)
	}
	for _, server := range s.servers {
		server.SetHandlerByMap(map[string]sarama.MockResponse{
			"MetadataRequest":       metadata,
			"InitProducerIDRequest": sarama.NewMockInitProducerIDResponse(s.t),
			"ProduceRequest":        sarama.NewMockSequence(produce...),
		})
	}
}

func (s scripted) open(change func(*kafka.Config)) *kafka.Broker {
	return open(s.t, func(c *kafka.Config) {
		c.Addresses = []string{s.servers[0].Addr()}
		if change != nil {
			change(c)
		}
		tune := c.Tune
		c.Tune = func(sc *sarama.Config) {
			sc.ApiVersionsRequest = false // They don't know it.
			if tune != nil {
				tune(sc)
			}
		}
	})
}

func (s scripted) count(request any) (n int) {
	for _, server := range s.servers {
		for _, r := range server.History() {
			switch r.Request.(type) {
			case *sarama.ProduceRequest:
				if _, ok := request.(*sarama.ProduceRequest); ok {
					n++
				}
			case *sarama.InitProducerIDRequest:
				if _, ok := request.(*sarama.InitProducerIDRequest); ok {
					n++
				}
			}
		}
	}
	return n
}

// F-28, O1: every refusal of Kafka has a class and a scope. What may pass is tried
// again within the call, what cannot is not.
func TestPublish_Refusals(t *testing.T) {
	t.Parallel()
	const ok = sarama.ErrNoError
	for name, tc := range map[string]struct {
		codes []sarama.KError // The last one is repeated.
		want  error
		class broker.Class
		scope broker.Scope
		tries int
	}{
		"too large":         {[]sarama.KError{sarama.ErrMessageSizeTooLarge}, sarama.ErrMessageSizeTooLarge, broker.Permanent, broker.ScopeRow, 1},
		"request too large": {[]sarama.KError{sarama.ErrMessageSetSizeTooLarge}, sarama.ErrMessageSetSizeTooLarge, broker.Permanent, broker.ScopeRow, 1},
		"not valid":         {[]sarama.KError{sarama.ErrInvalidRecord}, sarama.ErrInvalidRecord, broker.Permanent, broker.ScopeRow, 1},
		"topic forbidden":   {[]sarama.KError{sarama.ErrTopicAuthorizationFailed}, sarama.ErrTopicAuthorizationFailed, broker.Transient, broker.ScopeTopic, 1},
		"cluster forbidden": {[]sarama.KError{sarama.ErrClusterAuthorizationFailed}, sarama.ErrClusterAuthorizationFailed, broker.Transient, broker.ScopeBroker, 1},
		"something else":    {[]sarama.KError{sarama.ErrSecurityDisabled}, sarama.ErrSecurityDisabled, broker.Transient, broker.ScopeUnknown, 1},
		"server's mistake":  {[]sarama.KError{sarama.ErrUnknown}, sarama.ErrUnknown, broker.Unknown, broker.ScopeUnknown, 1},
		"passes":            {[]sarama.KError{sarama.ErrNotEnoughReplicas, sarama.ErrNotEnoughReplicas, ok}, nil, 0, 0, 3},
		"passes unclear":    {[]sarama.KError{sarama.ErrRequestTimedOut, sarama.ErrNotEnoughReplicasAfterAppend, ok}, nil, 0, 0, 3},
		"is there already":  {[]sarama.KError{sarama.ErrRequestTimedOut, sarama.ErrDuplicateSequenceNumber}, nil, 0, 0, 2},
		"in doubt":          {[]sarama.KError{sarama.ErrRequestTimedOut, sarama.ErrOutOfOrderSequenceNumber}, sarama.ErrOutOfOrderSequenceNumber, broker.Unknown, broker.ScopeUnknown, 2},
		"doubt stays doubt": {[]sarama.KError{sarama.ErrRequestTimedOut, sarama.ErrTopicAuthorizationFailed}, sarama.ErrTopicAuthorizationFailed, broker.Unknown, broker.ScopeTopic, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := script(t, 1)
			s.answer(s.metadata(0), tc.codes...)
			b := s.open(nil)
			err := b.Publish(bounded(t), run("topic", "key", 0, 1))
			require.Equal(t, tc.tries, s.count(&sarama.ProduceRequest{}))
			if tc.want == nil {
				require.NoError(t, err)
				return
			}
			failed := failures(t, err)
			require.ErrorIs(t, failed[0], tc.want)
			require.Equal(t, tc.class, broker.ClassOf(failed[0]), "%v", failed[0])
			require.Equal(t, tc.scope, broker.ScopeOf(failed[0]), "%v", failed[0])
		})
	}
}

// O1: a refusal that doesn't pass ends the call: known not to be stored some time
// before PublishTimeout, in doubt with it.
func TestPublish_RefusalsThatStay(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		code  sarama.KError
		class broker.Class
	}{
		"too few replicas":           {sarama.ErrNotEnoughReplicas, broker.Transient},
		"no such topic":              {sarama.ErrUnknownTopicOrPartition, broker.Transient},
		"no leader":                  {sarama.ErrLeaderNotAvailable, broker.Transient},
		"too few replicas, in doubt": {sarama.ErrNotEnoughReplicasAfterAppend, broker.Unknown},
		"another leader, in doubt":   {sarama.ErrNotLeaderForPartition, broker.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := script(t, 1)
			s.answer(s.metadata(0), tc.code)
			b := s.open(func(c *kafka.Config) { c.PublishTimeout = 8 * time.Second })
			failed := failures(t, b.Publish(bounded(t), run("topic", "key", 0, 1)))
			require.ErrorIs(t, failed[0], tc.code)
			require.Equal(t, tc.class, broker.ClassOf(failed[0]), "%v", failed[0])
			require.Equal(t, broker.ScopeTopic, broker.ScopeOf(failed[0]), "%v", failed[0])
		})
	}
}

// The leader moves: the same batch goes to the new one.
func TestPublish_LeaderMoves(t *testing.T) {
	t.Parallel()
	s := script(t, 2)
	s.answer(sarama.NewMockSequence(s.metadata(0), s.metadata(0), s.metadata(1)))
	s.servers[0].SetHandlerByMap(map[string]sarama.MockResponse{
		"MetadataRequest":       sarama.NewMockSequence(s.metadata(0), s.metadata(0), s.metadata(1)),
		"InitProducerIDRequest": sarama.NewMockInitProducerIDResponse(t),
		"ProduceRequest":        sarama.NewMockProduceResponse(t).SetError("topic", 0, sarama.ErrNotLeaderForPartition),
	})
	s.servers[1].SetHandlerByMap(map[string]sarama.MockResponse{
		"MetadataRequest": s.metadata(1),
		"ProduceRequest":  sarama.NewMockProduceResponse(t),
	})
	b := s.open(nil)
	require.NoError(t, b.Publish(bounded(t), run("topic", "key", 0, 3)))
	var asked bool
	for _, r := range s.servers[1].History() {
		_, produce := r.Request.(*sarama.ProduceRequest)
		asked = asked || produce
	}
	require.True(t, asked)
}

// The leader is gone and the others name no new one: nothing was handed over.
func TestPublish_NoLeader(t *testing.T) {
	t.Parallel()
	for name, leader := range map[string]int32{"none": -1, "one that nobody knows": 7} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := script(t, 1)
			s.answer(s.metadata(leader), sarama.ErrNoError)
			b := s.open(nil)
			failed := failures(t, b.Publish(bounded(t), run("topic", "key", 0, 2)))
			require.Len(t, failed, 2)
			require.Equal(t, broker.Unavailable, broker.ClassOf(failed[0]), "%v", failed[0])
			require.Equal(t, broker.ScopeTopic, broker.ScopeOf(failed[0]), "%v", failed[0])
			require.ErrorContains(t, failed[0], "no leader")
			require.Zero(t, s.count(&sarama.ProduceRequest{}))
		})
	}
}

// Kafka has forgotten the producer: it gets a new id and goes on.
func TestPublish_ForgottenProducer(t *testing.T) {
	t.Parallel()
	for _, code := range []sarama.KError{
		sarama.ErrOutOfOrderSequenceNumber, sarama.ErrUnknownProducerID, sarama.ErrInvalidProducerEpoch,
		sarama.ErrInvalidProducerIDMapping, sarama.ErrDuplicateSequenceNumber,
	} {
		s := script(t, 1)
		s.answer(s.metadata(0), sarama.ErrNoError, code, sarama.ErrNoError)
		b := s.open(nil)
		require.NoError(t, b.Publish(bounded(t), run("topic", "key", 0, 1)))
		require.NoError(t, b.Publish(bounded(t), run("topic", "key", 1, 1)))
		require.Equal(t, 3, s.count(&sarama.ProduceRequest{}))
		require.Equal(t, 2, s.count(&sarama.InitProducerIDRequest{}))
	}
}

// O1: who may not write at all is told so at once, and that costs nothing.
func TestPublish_NoProducerID(t *testing.T) {
	t.Parallel()
	for _, code := range []sarama.KError{sarama.ErrClusterAuthorizationFailed, sarama.ErrOffsetsLoadInProgress} {
		t.Run(code.Error(), func(t *testing.T) {
			t.Parallel()
			s := script(t, 1)
			s.servers[0].SetHandlerByMap(map[string]sarama.MockResponse{
				"MetadataRequest":       s.metadata(0),
				"InitProducerIDRequest": sarama.NewMockInitProducerIDResponse(t).SetError(code),
			})
			b := s.open(nil)
			failed := failures(t, b.Publish(bounded(t), run("topic", "key", 0, 1)))
			require.ErrorIs(t, failed[0], code)
			require.Equal(t, broker.Unavailable, broker.ClassOf(failed[0]), "%v", failed[0])
			require.Equal(t, broker.ScopeBroker, broker.ScopeOf(failed[0]), "%v", failed[0])
		})
	}
}

// What is tried again is byte for byte the same batch: by that Kafka knows it.
func TestPublish_SameBatchAgain(t *testing.T) {
	t.Parallel()
	s := script(t, 1)
	s.answer(s.metadata(0), sarama.ErrRequestTimedOut, sarama.ErrRequestTimedOut, sarama.ErrNoError)
	network := newNetwork()
	var sent [][]byte
	b := s.open(func(c *kafka.Config) { c.Tune = network.tune })
	network.on(func(request []byte) (bool, error) {
		if produces(request) {
			sent = append(sent, bytes.Clone(request[12:])) // Behind the number of the request.
		}
		return true, nil
	}, nil)
	require.NoError(t, b.Publish(bounded(t), run("topic", "key", 0, 5)))
	require.Len(t, sent, 3)
	require.Equal(t, sent[0], sent[1])
	require.Equal(t, sent[0], sent[2])
}
