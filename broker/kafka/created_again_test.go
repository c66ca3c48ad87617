package kafka_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/kafka"
	"github.com/waybill-go/waybill/internal/logtest"
	"github.com/waybill-go/waybill/internal/waittest"
)

// A topic that somebody deletes and makes again is written and read on: a member that keeps
// to the old one says that it is gone, and who joins anew, as a subscription does, has what
// is written from then on, though the group committed more than that of the old one.
func TestBroker_ATopicThatIsCreatedAgainIsUsedOn(t *testing.T) {
	t.Parallel()
	for name, pause := range map[string]bool{"at once": false, "after a while": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := open(t, nil)
			name := topic(t, b)
			require.NoError(t, b.Publish(bounded(t), run(name, "key", 0, 10)))
			member := join(t, b, name)
			require.NoError(t, member.Ack(bounded(t), receive(t, member, 10)...))

			_, err := admin(t).DeleteTopics(bounded(t), name)
			require.NoError(t, err)
			if pause {
				waittest.Until(t, func() bool { return b.Publish(deadline(t), run(name, "key", 10, 1)) != nil }, "its end is noticed")
			}
			waittest.Until(t, func() bool {
				made, err := admin(t).CreateTopic(bounded(t), 3, 1, nil, name)
				return err == nil && made.Err == nil
			}, "it is there again")
			waittest.Until(t, func() bool { return b.Publish(deadline(t), run(name, "key", 20, 1)) == nil }, "it is written")

			for last := ""; last != "20"; {
				got, err := member.Receive(bounded(t), 10)
				if err != nil {
					require.ErrorContains(t, err, "was deleted, and may have been created again")
					require.NoError(t, member.Close(bounded(t)))
					member = join(t, b, name)
					continue
				}
				last = string(got[len(got)-1].Body)
			}
		})
	}
}

// A topic is gone when a member comes back from an outage, as an empty Kafka has taken the place
// of its own. The member says so, and who joins anew reads on. It had joined and had its
// partitions, and kgo asked for ever where they begin, without a word.
func TestBroker_ATopicThatIsGoneAfterAnOutageIsNoticed(t *testing.T) {
	t.Parallel()
	network := newNetwork()
	b := open(t, func(c *kafka.Config) { c.SessionTimeout, c.Dial = 6*time.Second, network.Dial })
	name := topic(t, b)
	require.NoError(t, b.Publish(bounded(t), run(name, "key", 0, 10)))
	member := join(t, b, name)
	require.NoError(t, member.Ack(bounded(t), receive(t, member, 10)...))

	network.cut()
	state(t, member, func(s broker.State) bool { return !s.Joined })
	_, err := admin(t).DeleteTopics(bounded(t), name)
	require.NoError(t, err)
	network.up()
	state(t, member, well)
	_, err = member.Receive(bounded(t), 1)
	require.ErrorContains(t, err, "was deleted, and may have been created again")
	require.NoError(t, member.Close(bounded(t)))

	require.NoError(t, b.EnsureTopics(bounded(t), name))
	member = join(t, b, name)
	waittest.Until(t, func() bool { return b.Publish(deadline(t), run(name, "key", 10, 1)) == nil }, "it is written")
	require.Equal(t, "10", string(receive(t, member, 1)[0].Body))
}

// A commit of the deleted topic that comes when the new one is there already, which has more
// messages by then than the group had read of the old one: the new one is read from its start,
// and the log says so. What a tool copies to another cluster is as good there as it was.
func TestGroup_WhatIsCommittedOfADeletedTopicLateIsNotTakenForTheNewOne(t *testing.T) {
	t.Parallel()
	var said logtest.Log
	b := open(t, func(c *kafka.Config) { c.Partitions, c.Logger = 1, slog.New(slog.NewTextHandler(&said, nil)) })
	name := topic(t, b)
	group := "group." + name
	require.NoError(t, b.Publish(bounded(t), run(name, "key", 0, 10)))
	member := join(t, b, name)
	require.NoError(t, member.Ack(bounded(t), receive(t, member, 10)...))
	require.NoError(t, member.Close(bounded(t)))
	committed, err := admin(t).FetchOffsets(bounded(t), group)
	require.NoError(t, err)

	_, err = admin(t).DeleteTopics(bounded(t), name)
	require.NoError(t, err)
	waittest.Until(t, func() bool {
		made, err := admin(t).CreateTopic(bounded(t), 1, 1, nil, name)
		return err == nil && made.Err == nil
	}, "it is there again")
	waittest.Until(t, func() bool { return b.Publish(deadline(t), run(name, "key", 100, 1)) == nil }, "it is written")
	require.NoError(t, b.Publish(bounded(t), run(name, "key", 101, 19)))

	late := committed.Offsets()
	require.NoError(t, admin(t).CommitAllOffsets(bounded(t), group, late))
	member = join(t, b, name)
	require.Equal(t, "100", string(receive(t, member, 1)[0].Body))
	require.Contains(t, said.String(), "was deleted and created again since the group read a partition")
	require.NoError(t, member.Close(bounded(t)))

	at, _ := late.Lookup(name, 0)
	cluster := b.Cluster()
	require.Contains(t, at.Metadata, cluster)
	at.Metadata = strings.ReplaceAll(at.Metadata, cluster, "another")
	var copied kadm.Offsets
	copied.Add(at)
	require.NoError(t, admin(t).CommitAllOffsets(bounded(t), group, copied))
	require.Equal(t, "110", string(receive(t, join(t, b, name), 1)[0].Body))
}

// A group that has read more of a partition than there is, with no other leader since: kgo
// would begin at its end, and what stands there would never be read.
func TestBroker_AGroupThatHasReadMoreThanThereIsBeginsAtTheStart(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	name := topic(t, b)
	require.NoError(t, b.Publish(bounded(t), run(name, "key", 0, 3)))
	var offsets kadm.Offsets
	for partition := range int32(8) {
		offsets.Add(kadm.Offset{Topic: name, Partition: partition, At: 10, LeaderEpoch: 0})
	}
	require.NoError(t, admin(t).CommitAllOffsets(bounded(t), "group."+name, offsets))
	got := receive(t, join(t, b, name), 3)
	require.Equal(t, "0", string(got[0].Body))
}
