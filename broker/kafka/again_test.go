package kafka_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/waybill-go/waybill/broker"
)

// C-65, F-05: when a server doesn't know one partition of a topic for a while, as happens when
// the topic was just made again, nothing is lost of what the others take. kgo, told to forget the
// topic, would number its batches from 0 again, and a partition that was there all the time would
// take the next batch for its first one sent again: acknowledged, and stored nowhere.
func TestPublish_APartitionThatIsMissingForAWhileLosesNothing(t *testing.T) {
	t.Parallel()
	c := fake(t, kfake.SeedTopics(2, "orders"))
	require.NoError(t, openFake(t, c, nil).Publish(bounded(t), spread("orders", 20)))
	key := map[int32]string{} // One of each partition.
	for _, r := range inFake(t, c, "orders") {
		key[r.Partition] = string(r.Key)
	}
	require.Len(t, key, 2)

	missing := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "orders", Partitions: []int32{1}, Err: kerr.UnknownTopicOrPartition, Count: -1})
	b := openFake(t, c, nil)
	failed := failures(t, b.Publish(bounded(t), []broker.Message{message("orders", key[0], "first"), message("orders", key[1], "missing")}))
	require.Len(t, failed, 1)
	require.ErrorIs(t, failed[1], kerr.UnknownTopicOrPartition)
	missing.Remove()
	require.NoError(t, b.Publish(bounded(t), []broker.Message{message("orders", key[0], "second"), message("orders", key[1], "missing")}))

	found := inFake(t, c, "orders")
	require.Subset(t, bodies(found, key[0]), []string{"first", "second"}, "acknowledged, and not stored")
	require.Contains(t, bodies(found, key[1]), "missing")
}
