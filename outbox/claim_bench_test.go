package outbox_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/outbox/outboxtest"
)

// BenchmarkClaimAndSettle is what a worker does around its calls of the broker, for
// so many rows that wait.
func BenchmarkClaimAndSettle(b *testing.B) {
	for _, waiting := range []int{1, 10, 400} {
		b.Run(fmt.Sprint(waiting), func(b *testing.B) {
			bench := outboxtest.Open(b, openPostgres(b))
			keys := outboxtest.Numbered("k", waiting)
			w := bench.Worker("w1", outboxtest.Partitions, time.Hour)
			for b.Loop() {
				b.StopTimer()
				bench.Insert(keys...)
				b.StartTimer()
				c := w.Claim(500)
				require.Len(b, c.Rows, waiting)
				require.Zero(b, w.Settle(c, outboxtest.All(c, outbox.Outcome{Status: outbox.Published})...))
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*waiting), "µs/row")
		})
	}
}
