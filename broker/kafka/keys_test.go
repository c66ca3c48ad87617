package kafka_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/waybill-go/waybill/broker/kafka"
)

// Each key of a file that concerns a group reaches Kafka.
func TestFromSettings_TimeoutsOfGroups(t *testing.T) {
	t.Parallel()
	c := fake(t)
	asked := make(chan *kmsg.JoinGroupRequest, 100)
	c.ControlKey(kmsg.JoinGroup.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		asked <- r.(*kmsg.JoinGroupRequest)
		return nil, nil, false
	})
	b, err := kafka.FromSettings(bounded(t), settings(fmt.Sprintf("{addresses: [%q], session_timeout: 7s, rebalance_timeout: 11s}", c.ListenAddrs()[0])))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close(bounded(t))) })
	state(t, join(t, b, "topic"), well)
	r := <-asked
	require.EqualValues(t, 7000, r.SessionTimeoutMillis)
	require.EqualValues(t, 11000, r.RebalanceTimeoutMillis)
}

// A topic is created as the file says.
func TestFromSettings_SettingsOfTopics(t *testing.T) {
	t.Parallel()
	c := fake(t)
	asked := make(chan *kmsg.CreateTopicsRequest, 10)
	c.ControlKey(kmsg.CreateTopics.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		asked <- r.(*kmsg.CreateTopicsRequest)
		return nil, nil, false
	})
	b, err := kafka.FromSettings(bounded(t), settings(fmt.Sprintf(
		"{addresses: [%q], partitions: 3, min_insync_replicas: 1, replication_factor: 1, max_message_bytes: 5000}", c.ListenAddrs()[0])))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close(bounded(t))) })
	require.NoError(t, b.EnsureTopics(bounded(t), "made"))
	made := (<-asked).Topics[0]
	require.EqualValues(t, 3, made.NumPartitions)
	require.EqualValues(t, 1, made.ReplicationFactor)
	configs := map[string]string{}
	for _, c := range made.Configs {
		configs[c.Name] = *c.Value
	}
	require.Equal(t, map[string]string{"min.insync.replicas": "1", "max.message.bytes": "5000"}, configs)
}
