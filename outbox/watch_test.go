package outbox_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/outbox/outboxtest"
)

// F-51: an idle processor sends one query per interval, whatever its lanes and
// workers, besides looking for members; and what nobody rang for is found by it
// (S2-27). S2-46: leases are renewed when a third of
// them has passed, and not at every interval.
func TestProcessor_F51_S2_46_OneQueryPerIntervalWhenIdle(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		b, q := watched(b)
		cfg := quick()
		cfg.Workers, cfg.PollInterval, cfg.MaxPollInterval, cfg.Lease, cfg.Retention.Every = 4, 10*time.Millisecond, 10*time.Millisecond, time.Hour, -1
		m := memory.New(memory.Config{})
		p := processor(t, b, cfg, lane(m), outbox.Lane{Target: "partner", Broker: m, External: true})
		require.Eventually(t, func() bool {
			s := p.Status()
			return s["default"].Partitions == outboxtest.Partitions && s["partner"].Partitions == outboxtest.Partitions
		}, 20*time.Second, time.Millisecond)
		count := func(enough int) (others []string) {
			for polls := 0; polls < enough; <-time.After(time.Millisecond) {
				for _, query := range q.Take() {
					switch {
					case strings.HasPrefix(query, "WITH v(target_broker, partition, after, changes)"):
						polls++
					case !strings.HasPrefix(query, "SELECT") || !strings.Contains(query, "outbox_workers"):
						others = append(others, query)
					}
				}
			}
			return others
		}
		// Once the workers have looked for themselves.
		require.Eventually(t, func() bool { return len(count(30)) == 0 }, 20*time.Second, time.Millisecond)
		b.Insert("a")
		statuses(t, b, map[outbox.Status]int{outbox.Published: 1})
	})
}

// A poll finds what is due, and not what its worker knows can't go on, until an
// operator has changed something there.
func TestStore_LookFindsWhatItsWorkerMayNotKnow(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		area := func(key string) outbox.Area {
			return outbox.Area{Target: "default", Partition: outbox.PartitionOf(key, outboxtest.Partitions)}
		}
		look := func(areas ...outbox.Area) (keys int) {
			found, err := b.Look(t.Context(), areas)
			require.NoError(t, err)
			return len(found)
		}
		w := b.Worker("w1", outboxtest.Partitions, time.Minute)
		require.Zero(t, look(area("a")))
		b.Insert("a", "a")
		require.Equal(t, 1, look(area("a")))
		require.Zero(t, look(outbox.Area{Target: "partner", Partition: area("a").Partition}))
		known := area("a")
		known.After = b.Entries()[1].Seq
		require.Zero(t, look(known))
		known.After--
		require.Equal(t, 1, look(known))

		known.After++
		b.Exec("UPDATE outbox_partitions SET changes = changes + 1")
		require.Equal(t, 1, look(known), "an operator changed something")
		known.Changes = 1
		require.Zero(t, look(known))

		w.Claim(2)
		require.Zero(t, look(area("a")), "in hand")
	})
}
