package outbox_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/liveness"
	"github.com/waybill-go/waybill/internal/liveness/livenesstest"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/outbox/outboxtest"
)

// N1: what a process held that has ended on this host is free at once, however long
// its lease, and it has no share any more; what a live one holds is not, and neither
// is what belongs to one of which nothing is known.
func TestProcessor_N1_TakesAtOnceWhatTheDeadHeld(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		rows := b.Insert(outboxtest.Numbered("k", 40)...)
		dead := b.Worker(livenesstest.Dead(t), outboxtest.Partitions-2, time.Hour)
		alive := b.Worker(livenesstest.Alive(), 1, time.Hour)
		elsewhere := b.Worker("elsewhere-4711-00c0ffee-1", 1, time.Hour)
		_, err := b.Announce(t.Context(), b.DB, "default", []string{dead.Name}, nil, time.Hour)
		require.NoError(t, err)
		lost := len(dead.Claim(10).Rows)
		require.Positive(t, lost)
		others := 0
		for _, row := range rows {
			if p := row.Partition; p == alive.Leases[0].Partition || p == elsewhere.Leases[0].Partition {
				others++
			}
		}

		cfg := quick()
		cfg.Workers, cfg.Lease = 1, time.Minute
		m := memory.New(memory.Config{})
		p, log := logged(t, b, cfg, lane(m))
		statuses(t, b, map[outbox.Status]int{outbox.Published: len(rows) - others, outbox.Pending: others})
		require.Len(t, m.Messages(topic), len(rows)-others)
		require.EqualValues(t, lost, p.Status()["default"].TakenOver)
		require.Equal(t, 1, log.count("workers whose processes have ended on this host left their partitions at once"))
		seen, err := b.Membership(t.Context(), "default")
		require.NoError(t, err)
		require.Equal(t, 1, seen.Workers)
		require.Equal(t, map[string]int{alive.Name: 1, elsewhere.Name: 1}, only(owners(t, b), alive.Name, elsewhere.Name))
	})
}

func only(all map[string]int, names ...string) map[string]int {
	some := map[string]int{}
	for _, name := range names {
		some[name] = all[name]
	}
	return some
}

// N1: a worker's name says what others need to know whether it is alive.
func TestProcessor_N1_ItsWorkersNamesTell(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		processor(t, b, member(), lane(memory.New(memory.Config{})))
		shared(t, b, outboxtest.Partitions)
		for name := range owners(t, b) {
			require.Contains(t, name, fmt.Sprintf("-%d-", os.Getpid()))
			require.Equal(t, liveness.Alive, liveness.Here().State(name))
		}
	})
}
