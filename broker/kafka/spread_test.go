package kafka_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

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
