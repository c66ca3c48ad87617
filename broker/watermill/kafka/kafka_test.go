package kafka_test

import (
	"context"
	"os"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/brokertest"
	"github.com/waybill-go/waybill/broker/watermill/kafka"
	"github.com/waybill-go/waybill/internal/adaptertest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// sarama's metrics start one goroutine for the whole process, which never ends.
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}

func server(t *testing.T) string {
	t.Helper()
	addr := os.Getenv("WAYBILL_KAFKA")
	require.NotEmpty(t, addr, `WAYBILL_KAFKA is not set: run scripts/test, or eval "$(scripts/services up)"`)
	return addr
}

// The suite of all brokers, on the real Kafka. The stock subscriber hands out one message
// of a partition at a time.
func TestBroker(t *testing.T) {
	adaptertest.Run(t, "broker/watermill/kafka", brokertest.Config{
		Open: func(t *testing.T) broker.Broker {
			b, err := kafka.Open(kafka.Config{Addresses: []string{server(t)}})
			require.NoError(t, err)
			return b
		},
		TooLarge: 2 << 20,
	})
}

// settings are those of a configuration file.
type settings map[string]any

func (s settings) Decode(into any) error {
	v := reflect.ValueOf(into).Elem()
	for i := range v.NumField() {
		if value, ok := s[v.Type().Field(i).Tag.Get("yaml")]; ok {
			v.Field(i).Set(reflect.ValueOf(value))
		}
	}
	return nil
}

func TestFromSettings_SaysAllThatIsWrong(t *testing.T) {
	_, err := kafka.FromSettings(t.Context(), settings{"addresses": []string{"no-port"}, "partitions": -1, "replication_factor": -2})
	for _, what := range []string{`"no-port": write it as host:port`, "partitions is -1", "replication_factor is -2"} {
		require.ErrorContains(t, err, what)
	}
	_, err = kafka.FromSettings(t.Context(), settings{})
	require.ErrorContains(t, err, "addresses is missing")
}

// B3: a server that isn't there is an outage, of which consumers tell.
func TestOpen_NoServerIsAnOutage_B3(t *testing.T) {
	b, err := kafka.FromSettings(t.Context(), settings{"addresses": []string{"127.0.0.1:1"}})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(func() {
		require.NoError(t, b.Close(ctx))
		cancel()
	})
	var failed *broker.PublishError
	require.ErrorAs(t, b.Publish(ctx, []broker.Message{{ID: "1", Topic: "topic", Key: "key"}}), &failed)
	require.Equal(t, broker.Unavailable, broker.ClassOf(failed.Failed[0]))
	require.Equal(t, broker.ScopeBroker, broker.ScopeOf(failed.Failed[0]))
	require.Equal(t, broker.Unavailable, broker.ClassOf(b.EnsureTopics(ctx, "topic")))
	_, err = b.Consume(ctx, "topic", "group")
	require.Error(t, err)
}
