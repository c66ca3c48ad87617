package kafka_test

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/kafka"
	"github.com/waybill-go/waybill/internal/logtest"
	"github.com/waybill-go/waybill/internal/waittest"
)

// Where Kafka removed all that a group was behind, nothing comes that would show it. It is
// counted and logged all the same, isn't a lag that nobody can work off, and is passed: who
// has the partition next doesn't miss it again.
func TestRemoved_WithNothingBehindItIsToldAndPassed(t *testing.T) {
	t.Parallel()
	var said logtest.Log
	b := open(t, func(c *kafka.Config) { c.Partitions, c.Logger = 1, slog.New(slog.NewTextHandler(&said, nil)) })
	name := topic(t, b)
	require.NoError(t, b.Publish(bounded(t), run(name, "key", 0, 10)))
	member := join(t, b, name)
	require.NoError(t, member.Ack(bounded(t), receive(t, member, 10)...))
	require.NoError(t, member.Close(bounded(t)))
	require.NoError(t, b.Publish(bounded(t), run(name, "key", 10, 30)))
	require.NoError(t, remove(t, name, map[int32]int64{0: 40}))

	member = join(t, b, name)
	waittest.Until(t, func() bool { return member.(broker.Stateful).State().Missed == 30 }, "it is counted")
	require.Contains(t, said.String(), "partition=0 from=10 to=40")
	lags(t, 0, member)
	commits(t, name, map[int32]int64{0: 40})
	require.NoError(t, b.Publish(bounded(t), run(name, "key", 40, 1)))
	got := receive(t, member, 1)
	require.Equal(t, "40", string(got[0].Body))
	require.EqualValues(t, 30, member.(broker.Stateful).State().Missed, "once")

	// What was passed is the group's own offset for who comes next.
	require.NoError(t, member.Ack(bounded(t), got...))
	require.NoError(t, member.Close(bounded(t)))
	require.NoError(t, b.Publish(bounded(t), run(name, "key", 41, 1)))
	member = join(t, b, name)
	require.Equal(t, "41", string(receive(t, member, 1)[0].Body))
	require.Zero(t, member.(broker.Stateful).State().Missed)
	require.NotContains(t, said.String(), "has set the group's offsets")
}

// An offset that a tool has set beyond the end of a partition, without an epoch: kgo reads it
// from the start, and the log says so.
func TestGroup_AnOffsetBeyondTheEndIsToldOf(t *testing.T) {
	t.Parallel()
	var said logtest.Log
	b := open(t, func(c *kafka.Config) { c.Partitions, c.Logger = 1, slog.New(slog.NewTextHandler(&said, nil)) })
	name := topic(t, b)
	require.NoError(t, b.Publish(bounded(t), run(name, "key", 0, 3)))
	var offsets kadm.Offsets
	offsets.Add(kadm.Offset{Topic: name, Partition: 0, At: 10, LeaderEpoch: -1})
	require.NoError(t, admin(t).CommitAllOffsets(bounded(t), "group."+name, offsets))
	require.Equal(t, "0", string(receive(t, join(t, b, name), 3)[0].Body))
	require.Contains(t, said.String(), "partition=0 committed=10 end=3")
}

// Nobody can say what an operator skips who sets a group's offsets to the end; that they were
// set, the log says, and of a group's own offsets it says nothing.
func TestGroup_OffsetsThatSomebodyHasSetAreToldOf(t *testing.T) {
	t.Parallel()
	var said logtest.Log
	b := open(t, func(c *kafka.Config) { c.Partitions, c.Logger = 1, slog.New(slog.NewTextHandler(&said, nil)) })
	name := topic(t, b)
	require.NoError(t, b.Publish(bounded(t), run(name, "key", 0, 10)))
	for range 2 {
		member := join(t, b, name)
		require.NoError(t, member.Ack(bounded(t), receive(t, member, 5)...))
		require.NoError(t, member.Close(bounded(t)))
	}
	require.NotContains(t, said.String(), "set the group's offsets")
	require.NoError(t, b.Publish(bounded(t), run(name, "key", 10, 10)))
	var offsets kadm.Offsets
	offsets.Add(kadm.Offset{Topic: name, Partition: 0, At: 20, LeaderEpoch: -1}) // As kafka-consumer-groups does.
	require.NoError(t, admin(t).CommitAllOffsets(bounded(t), "group."+name, offsets))
	require.NoError(t, b.Publish(bounded(t), run(name, "key", 20, 1)))
	require.Equal(t, "20", string(receive(t, join(t, b, name), 1)[0].Body))
	require.Contains(t, said.String(), "offsets=map[0:20]")
}
