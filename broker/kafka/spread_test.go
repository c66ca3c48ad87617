package kafka_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/kafka"
	"github.com/waybill-go/waybill/internal/logtest"
	"github.com/waybill-go/waybill/internal/waittest"
)

// Partitions that are added to a topic that is published to move keys, after which nobody
// keeps their order: the log says so, once, whichever client hears of it first.
func TestPublish_PartitionsThatAreAddedAreToldOf(t *testing.T) {
	t.Parallel()
	var said logtest.Log
	b := open(t, func(c *kafka.Config) {
		c.Partitions, c.Options, c.Logger = 1, []kgo.Opt{kgo.MetadataMaxAge(time.Second)}, slog.New(slog.NewTextHandler(&said, nil))
	})
	name := topic(t, b)
	require.NoError(t, b.Publish(bounded(t), run(name, "key", 0, 1)))
	added, err := admin(t).UpdatePartitions(bounded(t), 4, name)
	require.NoError(t, err)
	require.NoError(t, added.Error())
	sent := 1
	publish := func() {
		require.NoError(t, b.Publish(bounded(t), run(name, "key", sent, 1)))
		sent++
	}
	waittest.Until(t, func() bool {
		publish()
		return strings.Contains(said.String(), "before=1 partitions=4")
	}, "it is told")
	publish()
	require.Equal(t, 1, strings.Count(said.String(), "partitions were added"))
}

// Once one client knows of partitions that were added, or that a topic has since it was created
// again, no other one puts a key where it was: its messages would go to two partitions by turns,
// where they overtake each other, until each client has asked by itself, within a minute.
func TestPublish_ClientsThatDifferInPartitionsScatterNoKey(t *testing.T) {
	t.Parallel()
	b := open(t, func(c *kafka.Config) { c.Partitions = 1 })
	name, id := topic(t, b), newID()
	plain := func(n int) { require.NoError(t, b.Publish(bounded(t), run(name, "key", n, 1))) }
	inTransaction := func(tx broker.Transactor, n int) error {
		return tx.Publish(bounded(t), broker.Mark{N: int64(n)}, run(name, "key", n, 1))
	}
	plain(0)
	before, _ := transact(t, b, id)
	require.NoError(t, inTransaction(before, 1))

	added, err := admin(t).UpdatePartitions(bounded(t), 8, name)
	require.NoError(t, err)
	require.NoError(t, added.Error())
	waittest.Until(t, func() bool {
		known, err := admin(t).ListTopics(bounded(t), name)
		return err == nil && len(known[name].Partitions) == 8
	}, "they are known")
	after, _ := transact(t, b, newID())
	require.NoError(t, inTransaction(after, 2))
	plain(3)
	err = inTransaction(before, 4)
	require.ErrorContains(t, err, "another number of partitions")
	require.Equal(t, broker.Unavailable, broker.ClassOf(err))
	before, mark := transact(t, b, id)
	require.Equal(t, int64(1), mark.N)
	require.NoError(t, inTransaction(before, 4))

	in := map[int32][]string{}
	for _, r := range stored(t, name) {
		in[r.Partition] = append(in[r.Partition], string(r.Value))
	}
	require.Len(t, in, 2, "%v", in)
	require.Equal(t, []string{"0", "1"}, in[0], "%v", in)
}
