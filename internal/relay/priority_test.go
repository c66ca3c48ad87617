package relay_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/outbox"
)

// A43, A60, D6: urgent rows overtake a backlog, in lanes of both kinds, and none of
// its own key.
// Conformance: A42.
func TestProcessor_A43_A60_D6_UrgentRowsOvertakeABacklog(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		var rows []outbox.Row
		for _, key := range append(outboxdbtest.Numbered("k", 50), "urgent", "k-49") {
			row := outboxdbtest.Row(key)
			rows = append(rows, row)
		}
		rows[50].Priority, rows[51].Priority = 10, 10
		for _, row := range rows {
			row.TargetBroker = "partner"
			row.ID = row.MessageID
			rows = append(rows, row)
		}
		b.InsertRows(rows...)
		own, partner := memory.New(memory.Config{}), memory.New(memory.Config{})
		cfg := quick()
		cfg.Calls, cfg.BatchSize = 1, 10
		processor(t, b, cfg, to(own), relay.Lane{Target: "partner", Broker: partner, External: true})
		statuses(t, b, map[outbox.Status]int{outbox.Published: 104})
		for _, m := range []*memory.Broker{own, partner} {
			sent := m.Messages(orders)
			require.Len(t, sent, 52)
			at := map[string]int{}
			for i, message := range sent {
				at[message.ID] = i
			}
			for _, i := range []int{49, 50, 51} {
				require.Less(t, at[rows[i].MessageID], 20, "with one of the first calls")
			}
			require.Less(t, at[rows[49].MessageID], at[rows[51].MessageID])
		}
	})
}
