package kafka_test

import (
	"log/slog"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill/broker/kafka"
	"github.com/waybill-go/waybill/internal/logtest"
)

// fake is a Kafka in this process, with a topic of one partition.
func fake(t testing.TB, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1), kfake.SeedTopics(1, "topic")}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// openFake connects to it; change may be nil.
func openFake(t testing.TB, c *kfake.Cluster, change func(*kafka.Config)) *kafka.Broker {
	conf := kafka.Config{Addresses: c.ListenAddrs(), Logger: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&conf)
	}
	return openAs(t, conf)
}

// toldIfFailed keeps what kgo does, and shows it if the test fails.
func toldIfFailed(t testing.TB) kgo.Opt {
	var lines logtest.Log
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(lines.String())
		}
	})
	return kgo.WithLogger(kgo.BasicLogger(&lines, kgo.LogLevelDebug, nil))
}

// inFake is all of a topic of a fake Kafka.
func inFake(t testing.TB, c *kfake.Cluster, topic string) []*kgo.Record {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...))
	require.NoError(t, err)
	defer client.Close()
	return readAll(t, kadm.NewClient(client), topic, c.ListenAddrs()...)
}

// nobody is an address that takes no connections.
func nobody(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}
