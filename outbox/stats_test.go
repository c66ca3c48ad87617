package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/outbox/outboxtest"
)

// S3-27: an attempt counts when it has an outcome, at a row that is there or was
// published, kept or not; one that is being made, was lost, or cost nothing doesn't.
func TestStats_S3_27_Attempts(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		is := func(attempts, retries int64, rate float64) {
			t.Helper()
			all, err := b.Stats(t.Context())
			require.NoError(t, err)
			s := all["default"]
			require.Equal(t, []int64{attempts, retries}, []int64{s.Attempts, s.Retries})
			require.InDelta(t, rate, s.RetryRate(), 1e-9)
		}
		settle := func(c outbox.Claim, r outbox.Retention, outcomes ...outbox.Outcome) {
			t.Helper()
			require.Len(t, c.Rows, len(outcomes))
			for i := range outcomes {
				outcomes[i].Seq = c.Rows[i].Seq
			}
			stale, err := b.Settle(t.Context(), outbox.Settlement{Claim: c.ID, Target: "default", Outcomes: outcomes, Retention: r})
			require.NoError(t, err)
			require.Zero(t, stale)
		}
		failed := outbox.Outcome{Status: outbox.Failed, Class: "transient", Error: "no"}
		published := outbox.Outcome{Status: outbox.Published}
		keep, remove := outbox.Retention{}, outbox.Retention{Delete: true}

		w := b.Worker("w1", outboxtest.Partitions, time.Minute)
		is(0, 0, 0)
		b.Insert("a", "b", "c", "d", "e")
		c := w.Claim(5)
		is(0, 0, 0) // being made
		settle(c, keep, failed, failed, failed, published, outbox.Outcome{Status: outbox.Pending, Unspent: true})
		is(4, 0, 0)
		settle(w.Claim(4), keep, published, failed, outbox.Outcome{Status: outbox.Abandoned, Class: "permanent", Error: "no"}, published)
		is(8, 3, 3.0/8)
		require.Len(t, w.Claim(1).Rows, 1)
		is(8, 3, 3.0/8)

		b.Expire()
		w = b.Worker("w2", outboxtest.Partitions, time.Minute)
		is(8, 3, 3.0/8) // lost
		settle(w.Claim(1), remove, published)
		is(9, 4, 4.0/9)
		b.Insert("f", "g")
		settle(w.Claim(2), remove, published, failed)
		is(11, 4, 4.0/11)
	})
}

// How long a row took is counted from when it was stored, by the database's clock; a
// row that wasn't published doesn't count.
func TestProcessor_Latency(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		m := memory.New(memory.Config{})
		p := processor(t, b, quick(), lane(m))
		require.Nil(t, p.Status()["default"].Latency)
		require.Zero(t, p.Status()["default"].Latencies.Count)
		b.Insert("a", "b", "c")
		statuses(t, b, map[outbox.Status]int{outbox.Published: 3})
		s := p.Status()["default"]
		require.Positive(t, s.Latency.P50)
		require.GreaterOrEqual(t, s.Latency.P99, s.Latency.P50)
		require.Less(t, s.Latency.P99, time.Minute)
		require.EqualValues(t, 3, s.Latencies.Count)
		require.Positive(t, s.Latencies.Sum)
		require.EqualValues(t, 3, s.Latencies.Buckets[60])

		m.FailNext(1, broker.Permanent)
		b.Insert("d")
		statuses(t, b, map[outbox.Status]int{outbox.Published: 3, outbox.Abandoned: 1})
		require.EqualValues(t, 3, p.Status()["default"].Latencies.Count)
		old := outboxtest.Row("e")
		require.NoError(t, b.DB.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
			if _, err := tx.ExecContext(ctx, "?", outbox.Insert([]outbox.Row{old})); err != nil {
				return err
			}
			_, err := tx.ExecContext(ctx, "UPDATE outbox SET created_at = ? WHERE message_id = ?", bun.Safe(dbtime.In(b.DB.Dialect(), -time.Hour)), old.MessageID)
			return err
		}))
		statuses(t, b, map[outbox.Status]int{outbox.Published: 4, outbox.Abandoned: 1})
		s = p.Status()["default"]
		require.EqualValues(t, 3, s.Latencies.Buckets[1800])
		require.EqualValues(t, 4, s.Latencies.Buckets[7200])
		require.Greater(t, s.Latency.P99, 30*time.Minute)
	})
}
