package kafka_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/brokertest"
	"github.com/waybill-go/waybill/broker/kafka"
)

// TestBroker runs the suite of all adapters; its outages are cut connections, so
// that other tests keep the server.
func TestBroker(t *testing.T) {
	net := newNetwork()
	brokertest.Run(t, brokertest.Harness{
		Open: func(t *testing.T) broker.Broker {
			b, err := kafka.Open(bounded(t), kafka.Config{Addresses: []string{server(t)}, Tune: net.tune})
			require.NoError(t, err)
			return b
		},
		Stop: func(*testing.T) func() {
			net.cut()
			return net.up
		},
		TooLarge: 2 << 20,
	})
}

func BenchmarkPublish(b *testing.B) {
	br := open(b, nil)
	name := topic(b, br)
	for _, size := range []int{1, 100, 500} {
		b.Run(string(rune('0'+size/100))+"00", func(b *testing.B) {
			body := make([]byte, 500)
			b.SetParallelism(2)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				i := 0
				for pb.Next() {
					call := make([]broker.Message, size)
					for k := range call {
						call[k] = broker.Message{ID: "0190a1b2-0000-7000-8000-000000000000", Topic: name, Key: string(rune('a'+i%26)) + string(rune('a'+(i/26)%26)), Body: body, Headers: map[string]string{
							"type": "Ordering.OrderPlaced.v1", "id": "0190a1b2-0000-7000-8000-000000000000", "time": "2026-01-01T00:00:00Z",
							"content-type": "application/json", "correlation-id": "0190a1b2-0000-7000-8000-000000000000",
						}}
						i++
					}
					if err := br.Publish(b.Context(), call); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N*size)/b.Elapsed().Seconds(), "msg/s")
		})
	}
}
