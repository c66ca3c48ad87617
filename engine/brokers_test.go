package engine

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
)

// elsewhere publishes to other topics than the broker did before.
type elsewhere struct{ *memory.Broker }

func (e elsewhere) Capabilities() broker.Capabilities {
	c := e.Broker.Capabilities()
	c.TopicPrefix = "elsewhere."
	return c
}

// clustered is a broker that knows its cluster once it was reached, as Kafka's does.
type clustered struct {
	*memory.Broker
	name    atomic.Value
	reached atomic.Bool
}

func (c *clustered) EnsureTopics(ctx context.Context, topics ...string) error {
	c.reached.Store(true)
	return c.Broker.EnsureTopics(ctx, topics...)
}

func (c *clustered) Cluster() string {
	if !c.reached.Load() {
		return ""
	}
	return c.name.Load().(string)
}

// What subscriptions had not handled stays with the former broker: the log says once that a
// name has got another one, and of which to which.
func TestBrokers_ANameThatGetsAnotherBroker(t *testing.T) {
	b := setup(t)
	run := func(cfg Config) int {
		t.Helper()
		e := b.make(cfg)
		require.NoError(t, e.Start(t.Context()))
		require.NoError(t, e.Stop(context.Background()))
		return len(b.logs.with("level=WARN", "the broker of this name is another one than before", "broker=partner", "no topic_prefix", "topic_prefix elsewhere."))
	}
	require.Zero(t, run(b.config()))
	require.Zero(t, run(b.config()), "it is the same")
	cfg := b.config()
	cfg.Brokers["partner"] = elsewhere{b.partner}
	require.Equal(t, 1, run(cfg))
	require.Equal(t, 1, run(cfg), "it is the same again")
	require.Empty(t, b.logs.with("the broker of this name is another one", "broker=default"))
}

// The same goes for another cluster of Kafka behind the same address and prefix, which is known
// once it was reached, and may take the other's place while the engine runs.
func TestBrokers_ANameThatGetsAnotherCluster(t *testing.T) {
	b := setup(t)
	start := func(cluster string) (*Engine, *clustered) {
		t.Helper()
		c := &clustered{Broker: b.partner}
		c.name.Store(cluster)
		cfg := b.config()
		cfg.Brokers["partner"] = c
		e := b.make(cfg)
		require.NoError(t, e.Start(t.Context()))
		return e, c
	}
	said := func(was, is string) int {
		return len(b.logs.with("level=WARN", "the broker of this name is another one than before", "broker=partner", "cluster "+was, "cluster "+is))
	}
	for _, cluster := range []string{"one", "one", "two"} {
		e, _ := start(cluster)
		require.NoError(t, e.Stop(context.Background()))
	}
	require.Equal(t, 1, said("one", "two"))
	e, c := start("two")
	c.name.Store("three")
	ended, end := context.WithCancel(t.Context())
	end()
	e.tellOfBrokers(ended)
	require.Zero(t, said("two", "three"), "it can't be noted")
	e.tellOfBrokers(t.Context())
	e.tellOfBrokers(t.Context())
	require.NoError(t, e.Stop(context.Background()))
	require.Equal(t, 1, said("two", "three"))
	require.Empty(t, b.logs.with("the broker of this name is another one", "broker=default"))
}
