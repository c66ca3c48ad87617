package subscription_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// BenchmarkHandled is the rate of messages with an effect of one row, from a
// broker in memory, at 16 lanes.
func BenchmarkHandled(b *testing.B) {
	for name, open := range map[string]func(testing.TB) uow.Provider{"postgres": openPostgres, "sqlite": openSQLite} {
		b.Run(name+"/document", func(b *testing.B) {
			benchmark(b, open(b), func(w *world) func(context.Context, OrderPlaced) error {
				shipments := repository.New[*Shipment](w.units)
				return func(ctx context.Context, e OrderPlaced) error {
					return shipments.Save(ctx, &Shipment{Root: domain.RootWithID(e.OrderID)})
				}
			})
		})
		b.Run(name+"/sql", func(b *testing.B) {
			benchmark(b, open(b), func(*world) func(context.Context, OrderPlaced) error { return effect })
		})
		b.Run(name+"/nothing", func(b *testing.B) {
			benchmark(b, open(b), func(*world) func(context.Context, OrderPlaced) error {
				return func(context.Context, OrderPlaced) error { return nil }
			})
		})
	}
}

func benchmark(b *testing.B, p uow.Provider, handler func(*world) func(context.Context, OrderPlaced) error) {
	w := newWorld(b, p)
	messages := make([]broker.Message, b.N)
	for i := range messages {
		messages[i] = placed(fmt.Sprintf("o-%d", i), "")
	}
	w.publish(messages...)
	s := w.streamOf(subscription.On(handler(w)))
	s.Name = "bench"
	b.ResetTimer()
	begin := time.Now()
	r, stop := w.start(s, w.broker)
	require.Eventually(b, w.acknowledged("bench"), time.Hour, time.Millisecond)
	b.StopTimer()
	b.ReportMetric(float64(b.N)/time.Since(begin).Seconds(), "messages/s")
	stop()
	require.EqualValues(b, b.N, r.Status().Handled)
}
