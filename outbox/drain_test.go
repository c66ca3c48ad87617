package outbox_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/outbox/outboxtest"
)

// BenchmarkDrain is claim and settle without a broker: rows per second from
// PostgreSQL to nowhere, with published rows being kept or removed at once.
func BenchmarkDrain(b *testing.B) {
	for _, c := range []struct {
		workers int
		remove  bool
	}{{1, false}, {4, false}, {4, true}} {
		b.Run(fmt.Sprintf("workers=%d,delete=%t", c.workers, c.remove), func(b *testing.B) {
			const rows = 20000
			for b.Loop() {
				b.StopTimer()
				bench := outboxtest.Open(b, openPostgres(b))
				bench.Exec(`INSERT INTO outbox (id, message_id, target_broker, stream, stream_category, partition_key, partition, message_type,
					aggregate_type, aggregate_id, aggregate_version, payload, content_type, occurred_at)
					SELECT gen_random_uuid(), (lpad(to_hex(n), 12, '0') || '70008000' || lpad(to_hex(n), 12, '0'))::uuid, 'default', 's', 'ordering::order', 'k' || n % 1000, n % 8, 'Ordering.OrderPlaced.v1', 'order', 'k' || n % 1000,
					1, convert_to(repeat('x', 500), 'UTF8'), 'application/json', now() FROM generate_series(1, ?) AS n`, rows)
				p, err := outbox.NewProcessor(outbox.ProcessorConfig{
					Provider: "default", Store: bench.Store, Lanes: []outbox.Lane{{Target: "default", Broker: nowhere{}}},
					Outbox: outbox.Config{Workers: c.workers, Retention: outbox.Retention{Delete: c.remove}}, Logger: slog.New(slog.DiscardHandler),
				})
				require.NoError(b, err)
				b.StartTimer()
				begin := time.Now()
				require.NoError(b, p.Start(b.Context()))
				for p.Status()["default"].Published < rows {
					<-time.After(time.Millisecond)
				}
				b.ReportMetric(rows/time.Since(begin).Seconds(), "rows/s")
				require.NoError(b, p.Stop(b.Context()))
			}
		})
	}
}

// nowhere stores everything, nowhere.
type nowhere struct{ broker.Broker }

func (nowhere) Publish(context.Context, []broker.Message) error { return nil }

func (nowhere) Capabilities() broker.Capabilities { return broker.Capabilities{Prefix: true} }
