package kafka_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/kafka"
	"github.com/waybill-go/waybill/internal/logtest"
	"github.com/waybill-go/waybill/internal/waittest"
)

// state waits for a state that is as wanted.
func state(t testing.TB, c broker.Consumer, wanted func(broker.State) bool) broker.State {
	t.Helper()
	var last broker.State
	waittest.Until(t, func() bool {
		last = c.(broker.Stateful).State()
		return wanted(last)
	}, "%+v", &last)
	return last
}

func ill(s broker.State) bool { return s.LastError != nil }

func well(s broker.State) bool { return s.Well() }

// B3, B4: a consumer that may not join, or not read, says so and doesn't storm; as
// soon as it may, it goes on by itself.
func TestState_B3_B4_ARefusalShowsAndIsNotAskedForWithoutPause(t *testing.T) {
	t.Parallel()
	for key, code := range map[kmsg.Key]*kerr.Error{
		kmsg.JoinGroup: kerr.GroupAuthorizationFailed, kmsg.FindCoordinator: kerr.GroupAuthorizationFailed,
		kmsg.OffsetFetch: kerr.GroupAuthorizationFailed, kmsg.Fetch: kerr.TopicAuthorizationFailed,
	} {
		t.Run(key.Name(), func(t *testing.T) {
			t.Parallel()
			c := fake(t)
			b := openFake(t, c, nil)
			require.NoError(t, b.Publish(bounded(t), run("topic", "key", 0, 3)))
			joins := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, TopLevel: true, Observe: true, Count: -1})
			refused := c.Fault(kfake.Fault{Keys: []kmsg.Key{key}, TopLevel: key == kmsg.JoinGroup, Err: code, Count: -1})
			began := time.Now()
			member := join(t, b, "topic")
			s := state(t, member, ill)
			require.ErrorIs(t, s.LastError, code)
			require.WithinRange(t, s.Since, began, time.Now())
			require.Equal(t, key == kmsg.Fetch, s.Joined)
			require.Equal(t, broker.Permanent, broker.ClassOf(s.LastError), "somebody has to give a right")

			asked := func() int { return joins.Hits() + refused.Hits() }
			before, since := asked(), time.Now()
			waittest.Until(t, func() bool { return asked() >= before+10 })
			require.Greater(t, time.Since(since), 500*time.Millisecond, "20 times a second at most")
			state(t, member, ill) // Between two tries it may have joined, for a moment.

			refused.Remove()
			require.Len(t, receive(t, member, 3), 3, "it goes on by itself")
			state(t, member, well)
		})
	}
}

// B3: what may not be committed comes again after a restart; that shows.
func TestState_B3_ACommitThatIsRefusedShows(t *testing.T) {
	t.Parallel()
	for _, err := range []*kerr.Error{kerr.GroupAuthorizationFailed, kerr.TopicAuthorizationFailed} {
		t.Run(err.Message, func(t *testing.T) {
			t.Parallel()
			c := fake(t)
			b := openFake(t, c, nil)
			require.NoError(t, b.Publish(bounded(t), run("topic", "key", 0, 1)))
			member := join(t, b, "topic")
			refused := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: err, Count: -1})
			require.NoError(t, member.Ack(bounded(t), receive(t, member, 1)...))
			require.ErrorIs(t, state(t, member, ill).LastError, err)
			refused.Remove()
			state(t, member, well)
		})
	}
}

// B3: Kafka is gone, and comes back.
func TestState_B3_AnOutageShows(t *testing.T) {
	t.Parallel()
	c := fake(t)
	network := newNetwork()
	b := openFake(t, c, func(c *kafka.Config) { c.SessionTimeout, c.Dial = 6*time.Second, network.Dial })
	member := join(t, b, "topic")
	joined := state(t, member, well)
	network.cut()
	// First it may say that a connection broke.
	gone := state(t, member, func(s broker.State) bool {
		return !s.Joined && s.LastError != nil && strings.Contains(s.LastError.Error(), "refused")
	})
	require.True(t, gone.Since.After(joined.Since))
	network.up()
	state(t, member, well)
}

// B3: Kafka takes what is sent and answers nothing. kgo gives the group up after 10 s at
// the earliest; that it hears nothing shows before, and while it is in its group.
func TestState_B3_SilenceShows(t *testing.T) {
	t.Parallel()
	c := fake(t)
	network := newNetwork()
	b := openFake(t, c, func(c *kafka.Config) { c.Dial = network.Dial })
	member := join(t, b, "topic")
	state(t, member, well)
	network.on(func([]byte) (bool, error) { return false, nil }, nil)
	silent := state(t, member, ill)
	require.True(t, silent.Joined)
	require.ErrorContains(t, silent.LastError, "no server has answered for")
	network.on(nil, nil)
	state(t, member, well)
}

// One that stands by, as others have all partitions, has joined.
func TestState_StandingByIsJoined(t *testing.T) {
	t.Parallel()
	c := fake(t)
	b := openFake(t, c, nil)
	one, other := join(t, b, "topic"), join(t, b, "topic")
	state(t, one, well)
	state(t, other, well)
}

// B10: retention removed what the group didn't have yet. What is missed is counted
// and logged, with its place.
func TestState_B10_WhatRetentionRemovedIsCountedAndLogged(t *testing.T) {
	t.Parallel()
	var said logtest.Log
	b := open(t, func(c *kafka.Config) { c.Partitions, c.Logger = 1, slog.New(slog.NewTextHandler(&said, nil)) })
	name := topic(t, b)
	require.NoError(t, b.Publish(bounded(t), run(name, "key", 0, 10)))
	member := join(t, b, name)
	require.NoError(t, member.Ack(bounded(t), receive(t, member, 10)...))
	require.NoError(t, member.Close(bounded(t)))
	require.NoError(t, b.Publish(bounded(t), run(name, "key", 10, 30)))
	require.NoError(t, remove(t, name, map[int32]int64{0: 25}))

	member = join(t, b, name)
	require.Equal(t, "25", string(receive(t, member, 1)[0].Body))
	require.EqualValues(t, 15, member.(broker.Stateful).State().Missed)
	require.Contains(t, said.String(), "partition=0 from=10 to=25")
}

// S5: what is small on the wire and huge in memory stops its partition, which says
// where; others go on, and what it takes in memory is bounded.
func TestState_S5_AnOversizedBatchStopsItsPartition(t *testing.T) {
	b := open(t, func(c *kafka.Config) { c.Partitions, c.MaxBatchBytes = 2, 4<<20 })
	name := topic(t, b)
	client, err := kgo.NewClient(kgo.SeedBrokers(server(t)), kgo.ProducerBatchCompression(kgo.ZstdCompression()),
		kgo.ProducerBatchMaxBytes(90<<20), kgo.DisableIdempotentWrite(), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	defer client.Close()
	record := func(partition int32, value []byte) *kgo.Record {
		return &kgo.Record{Topic: name, Partition: partition, Key: []byte("k"), Value: value}
	}
	require.NoError(t, client.ProduceSync(bounded(t), record(1, []byte("small"))).FirstErr())
	require.NoError(t, client.ProduceSync(bounded(t), record(1, bytes.Repeat([]byte("x"), 64<<20))).FirstErr())

	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	member := join(t, b, name)
	require.Equal(t, "small", string(receive(t, member, 1)[0].Body))
	s := state(t, member, ill)
	require.True(t, s.Joined)
	require.Equal(t, 2, s.Partitions)
	require.Equal(t, broker.Permanent, broker.ClassOf(s.LastError))
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(48<<20))
	require.ErrorContains(t, s.LastError, fmt.Sprintf("topic %s, partition 1, offset 1", name))
	require.ErrorContains(t, s.LastError, "max_batch_bytes, 4194304: raise it, or set the group's offset of the partition to 2")

	require.NoError(t, client.ProduceSync(bounded(t), record(0, []byte("other"))).FirstErr())
	require.Equal(t, "other", string(receive(t, member, 1)[0].Body))
	require.True(t, ill(member.(broker.Stateful).State()), "it stays")
}
