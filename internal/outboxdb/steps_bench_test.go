package outboxdb_test

import (
	"testing"
	"time"

	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
)

// What the steps of publishing cost a row, with claims of 250 rows of as many keys.
func BenchmarkSteps(b *testing.B) {
	for name, open := range map[string]func(testing.TB) outboxdbtest.Database{"SQLite": outboxdbtest.SQLite, "PostgreSQL": outboxdbtest.PostgreSQL} {
		b.Run(name, func(b *testing.B) { steps(b, outboxdbtest.Open(b, open(b))) })
	}
}

func steps(b *testing.B, on *outboxdbtest.Bench) {
	b.Helper()
	const rows = 250
	m := on.Join("bench", time.Hour, outboxdbtest.Partitions)
	took := map[string]time.Duration{}
	timed := func(step string, do func()) {
		begin := time.Now()
		do()
		took[step] += time.Since(begin)
	}
	keys := outboxdbtest.Numbered("key", rows)
	for b.Loop() {
		timed("insert", func() { on.Insert(keys...) })
		timed("look", func() { m.Look(rows) })
		found := m.Look(rows)
		timed("claim", func() {
			claimed := m.Claim(found...)
			timed("settle", func() { m.Settle(m.Settlement(claimed...)) })
		})
	}
	took["claim"] -= took["settle"]
	for step, t := range took {
		b.ReportMetric(float64(t.Nanoseconds())/float64(b.N*rows), step+"-ns/row")
	}
}
