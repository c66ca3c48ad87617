package redis_test

import (
	"context"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/brokertest"
	"github.com/waybill-go/waybill/internal/adaptertest"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/examples/watermill/internal/servertest"
	"github.com/waybill-go/waybill/examples/watermill/redis"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The suite of all adapters, with a kill of the server under load (S1-12, F-29).
func TestBroker_S1_12_F_29(t *testing.T) {
	server := servertest.Start(t, "redis")
	adaptertest.Run(t, "examples/watermill/redis", brokertest.Config{
		Open: func(t *testing.T) broker.Broker {
			b, err := redis.Open(redis.Config{URL: server.URL, MaxIdle: 5 * time.Second})
			require.NoError(t, err)
			return b
		},
		Stop: func(t *testing.T) func() { return server.Kill(t) },
	})
}

// A topic that is no stream refuses; the class says that trying again can't help.
func TestPublish_S1_11(t *testing.T) {
	server := servertest.Start(t, "redis")
	b, err := redis.Open(redis.Config{URL: server.URL})
	require.NoError(t, err)
	ctx := t.Context()
	defer func() { require.NoError(t, b.Close(context.Background())) }()
	options, err := goredis.ParseURL(server.URL)
	require.NoError(t, err)
	client := goredis.NewClient(options)
	defer client.Close()
	require.NoError(t, client.Set(ctx, "text", "x", 0).Err())

	err = b.Publish(ctx, []broker.Message{
		{ID: "1", Topic: "topic", Key: "a"}, {ID: "2", Topic: "text", Key: "b"}, {ID: "3", Topic: "topic", Key: "c"},
	})
	var partly *broker.PublishError
	require.ErrorAs(t, err, &partly)
	require.Len(t, partly.Failed, 1)
	require.Equal(t, broker.Transient, broker.ClassOf(partly.Failed[1]), "%v", partly.Failed[1])
	require.Equal(t, broker.ScopeTopic, broker.ScopeOf(partly.Failed[1]))
	require.EqualValues(t, 2, client.XLen(ctx, "topic").Val())

	require.NoError(t, client.ConfigSet(ctx, "maxmemory", "1").Err())
	err = b.Publish(ctx, []broker.Message{{ID: "4", Topic: "topic", Key: "a"}})
	require.ErrorAs(t, err, &partly)
	require.Equal(t, broker.Transient, broker.ClassOf(partly.Failed[0]), "%v", partly.Failed[0])
	require.Equal(t, broker.ScopeBroker, broker.ScopeOf(partly.Failed[0]))
}
