package kafka_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/kafka"
)

// answers has the fake refuse produce requests, one code after the other, the last
// for ever unless it is nil. asked counts them.
func answers(c *kfake.Cluster, codes ...*kerr.Error) (asked func() int64) {
	var faults []*kfake.FaultHandle
	for i, code := range codes {
		if code == nil {
			break
		}
		count := 1
		if i == len(codes)-1 {
			count = -1
		}
		faults = append(faults, c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "topic", Err: code, Count: count}))
	}
	rest := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "topic", Observe: true, Count: -1})
	return func() (n int64) {
		for _, f := range append(faults, rest) {
			n += int64(f.Hits())
		}
		return n
	}
}

// F-28, O1, B7: every refusal of Kafka has a class and a scope. What may pass is
// tried again within the call, what cannot is not. Once an attempt may be stored, so
// may be the message.
func TestPublish_Refusals(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		codes []*kerr.Error // The last one is repeated.
		want  error
		class broker.Class
		scope broker.Scope
		tries int64
	}{
		"too large":         {[]*kerr.Error{kerr.MessageTooLarge}, kerr.MessageTooLarge, broker.Permanent, broker.ScopeRow, 1},
		"request too large": {[]*kerr.Error{kerr.RecordListTooLarge}, kerr.RecordListTooLarge, broker.Permanent, broker.ScopeRow, 1},
		"not valid":         {[]*kerr.Error{kerr.InvalidRecord}, kerr.InvalidRecord, broker.Permanent, broker.ScopeRow, 1},
		"wrong time":        {[]*kerr.Error{kerr.InvalidTimestamp}, kerr.InvalidTimestamp, broker.Permanent, broker.ScopeRow, 1},
		"topic forbidden":   {[]*kerr.Error{kerr.TopicAuthorizationFailed}, kerr.TopicAuthorizationFailed, broker.Transient, broker.ScopeTopic, 1},
		"policy":            {[]*kerr.Error{kerr.PolicyViolation}, kerr.PolicyViolation, broker.Transient, broker.ScopeTopic, 1},
		"cluster forbidden": {[]*kerr.Error{kerr.ClusterAuthorizationFailed}, kerr.ClusterAuthorizationFailed, broker.Transient, broker.ScopeBroker, 1},
		"something else":    {[]*kerr.Error{kerr.SecurityDisabled}, kerr.SecurityDisabled, broker.Transient, broker.ScopeUnknown, 1},
		"server's mistake":  {[]*kerr.Error{kerr.UnknownServerError}, kerr.UnknownServerError, broker.Unknown, broker.ScopeUnknown, 1},
		"passes":            {[]*kerr.Error{kerr.NotEnoughReplicas, kerr.NotEnoughReplicas, nil}, nil, 0, 0, 3},
		"passes unclear":    {[]*kerr.Error{kerr.RequestTimedOut, kerr.NotEnoughReplicasAfterAppend, nil}, nil, 0, 0, 3},
		"is there already":  {[]*kerr.Error{kerr.RequestTimedOut, kerr.DuplicateSequenceNumber}, nil, 0, 0, 2},
		"leader elsewhere":  {[]*kerr.Error{kerr.NotLeaderForPartition, nil}, nil, 0, 0, 2},
		"clear after clear": {[]*kerr.Error{kerr.NotEnoughReplicas, kerr.TopicAuthorizationFailed}, kerr.TopicAuthorizationFailed, broker.Transient, broker.ScopeTopic, 2},
		"doubt stays doubt": {[]*kerr.Error{kerr.RequestTimedOut, kerr.TopicAuthorizationFailed}, kerr.TopicAuthorizationFailed, broker.Unknown, broker.ScopeTopic, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := fake(t)
			asked := answers(c, tc.codes...)
			b := openFake(t, c, nil)
			err := b.Publish(bounded(t), run("topic", "key", 0, 1))
			require.Equal(t, tc.tries, asked())
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

// What a topic doesn't take is abandoned at once: the error says what would have it taken.
func TestPublish_TooLargeForTheTopicSaysWhatHelps(t *testing.T) {
	t.Parallel()
	c := fake(t)
	answers(c, kerr.MessageTooLarge)
	err := openFake(t, c, nil).Publish(bounded(t), run("topic", "key", 0, 1))
	require.ErrorContains(t, failures(t, err)[0], "raise the topic's max.message.bytes, or send less")
}

// O1: a refusal that doesn't pass ends the call with its code, in doubt with
// PublishTimeout.
func TestPublish_RefusalsThatStay(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		code  *kerr.Error
		class broker.Class
	}{
		"too few replicas":           {kerr.NotEnoughReplicas, broker.Transient},
		"no such topic":              {kerr.UnknownTopicOrPartition, broker.Transient},
		"too few replicas, in doubt": {kerr.NotEnoughReplicasAfterAppend, broker.Unknown},
		"too slow, in doubt":         {kerr.RequestTimedOut, broker.Unknown},
		"another leader, in doubt":   {kerr.NotLeaderForPartition, broker.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := fake(t)
			answers(c, tc.code)
			b := openFake(t, c, func(c *kafka.Config) { c.PublishTimeout = 8 * time.Second })
			ctx := bounded(t)
			failed := failures(t, b.Publish(ctx, run("topic", "key", 0, 1)))
			require.NoError(t, ctx.Err(), "PublishTimeout ended it")
			require.ErrorIs(t, failed[0], tc.code)
			require.Equal(t, tc.class, broker.ClassOf(failed[0]), "%v", failed[0])
			require.Equal(t, broker.ScopeTopic, broker.ScopeOf(failed[0]), "%v", failed[0])
		})
	}
}

// O1: the leader is gone and the others name no new one: nothing was handed over,
// and other topics are well.
func TestPublish_NoLeader(t *testing.T) {
	t.Parallel()
	c := fake(t)
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Topic: "topic", Err: kerr.LeaderNotAvailable, Count: -1})
	asked := answers(c)
	b := openFake(t, c, nil)
	failed := failures(t, b.Publish(bounded(t), run("topic", "key", 0, 2)))
	require.Len(t, failed, 2)
	require.Equal(t, broker.Unavailable, broker.ClassOf(failed[0]), "%v", failed[0])
	require.Equal(t, broker.ScopeTopic, broker.ScopeOf(failed[0]), "%v", failed[0])
	require.Zero(t, asked())
}

// O1: one of two servers is gone, with the topic's partition: the other one
// answers, so the broker is well.
func TestPublish_LeaderIsAway(t *testing.T) {
	t.Parallel()
	c := fake(t, kfake.NumBrokers(2))
	require.NoError(t, c.MoveTopicPartition("topic", 0, 1))
	network := newNetwork()
	leader := c.ListenAddrs()[1]
	b := openFake(t, c, func(conf *kafka.Config) {
		conf.Addresses = c.ListenAddrs()[:1]
		conf.Dial = network.to(func(addr string) string {
			if addr == leader {
				return nobody(t)
			}
			return addr
		})
	})
	failed := failures(t, b.Publish(bounded(t), run("topic", "key", 0, 2)))
	require.Equal(t, broker.Unavailable, broker.ClassOf(failed[0]), "%v", failed[0])
	require.Equal(t, broker.ScopeTopic, broker.ScopeOf(failed[0]), "%v", failed[0])
	require.ErrorContains(t, failed[0], "no connection to")
}

// Kafka has forgotten the producer: it goes on with another epoch or id.
func TestPublish_ForgottenProducer(t *testing.T) {
	t.Parallel()
	for _, code := range []*kerr.Error{
		kerr.OutOfOrderSequenceNumber, kerr.UnknownProducerID, kerr.InvalidProducerEpoch, kerr.InvalidProducerIDMapping,
	} {
		t.Run(code.Message, func(t *testing.T) {
			t.Parallel()
			c := fake(t)
			b := openFake(t, c, nil)
			require.NoError(t, b.Publish(bounded(t), run("topic", "key", 0, 1)))
			asked := answers(c, code, nil)
			require.NoError(t, b.Publish(bounded(t), run("topic", "key", 1, 1)))
			require.EqualValues(t, 2, asked())
			require.Equal(t, []string{"0", "1"}, bodies(inFake(t, c, "topic"), "key"))
		})
	}
}

// O1, B7: who may not write at all is told so, and that costs nothing.
func TestPublish_NoProducerID(t *testing.T) {
	t.Parallel()
	for _, code := range []*kerr.Error{kerr.ClusterAuthorizationFailed, kerr.CoordinatorLoadInProgress} {
		t.Run(code.Message, func(t *testing.T) {
			t.Parallel()
			c := fake(t)
			c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, TopLevel: true, Err: code, Count: -1})
			b := openFake(t, c, nil)
			failed := failures(t, b.Publish(bounded(t), run("topic", "key", 0, 1)))
			require.Equal(t, broker.Unavailable, broker.ClassOf(failed[0]), "%v", failed[0])
			require.Equal(t, broker.ScopeBroker, broker.ScopeOf(failed[0]), "%v", failed[0])
		})
	}
}
