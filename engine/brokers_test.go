package engine

import (
	"context"
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
