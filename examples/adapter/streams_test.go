package streams_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/brokertest"
	"github.com/waybill-go/waybill/examples/adapter"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The adapter passes the suite of all brokers, on a Redis within the test.
func TestBroker(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	brokertest.Run(t, brokertest.Config{
		Open: func(t *testing.T) broker.Broker {
			b, err := streams.Open(streams.Config{URL: "redis://" + server.Addr()})
			require.NoError(t, err)
			return b
		},
		Stop: func(t *testing.T) (start func()) {
			server.SetError("LOADING Redis is loading the dataset in memory")
			return func() { server.SetError("") }
		},
		Declared: brokertest.Declared{Outage: true, AutoTopics: true},
		Wait:     20 * time.Second,
	})
}

// What the suite can't bring about with a server within the test: nothing listens, and
// whoever listens hangs up.
func TestPublish_ClassesOfLostConnections(t *testing.T) {
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	publish := func() error {
		b, err := streams.Open(streams.Config{URL: "redis://" + listener.Addr().String()})
		require.NoError(t, err)
		defer func() { require.NoError(t, b.Close(context.Background())) }()
		return b.Publish(t.Context(), []broker.Message{{ID: "1", Topic: "topic", Key: "key"}})
	}
	hungUp := publish()
	require.NoError(t, listener.Close())
	<-done
	nobody := publish()
	require.Equal(t, broker.Unknown, broker.ClassOf(hungUp), "it may have arrived: %v", hungUp)
	require.Equal(t, broker.Unavailable, broker.ClassOf(nobody), "%v", nobody)
	require.Equal(t, broker.ScopeBroker, broker.ScopeOf(nobody))
}

func TestOpen_SaysAllThatIsWrong(t *testing.T) {
	_, err := streams.Open(streams.Config{URL: "localhost", MaxIdle: -1})
	require.ErrorContains(t, err, "write it as redis://host:port")
	require.ErrorContains(t, err, "max_idle is -1ns")
}
