package outboxdb_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/outbox"
)

func TestLook_PagesOfEachPartition(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.Insert(outboxdbtest.Numbered("k", 200)...)
		m := b.Join("one", time.Minute, 100)
		lows := []relay.PartLow{{Part: 3, Low: 100}, {Part: 0}}
		rows, err := b.Look(t.Context(), m.Lane, lows, 5)
		require.NoError(t, err)
		require.Len(t, rows, 10)
		for i, r := range rows {
			require.Equal(t, i/5*3, r.Part)
			require.Equal(t, outbox.TopicHash("ordering.order"), r.Topic)
			require.False(t, r.Waits)
			require.Positive(t, r.Bytes)
			if r.Part == 3 {
				require.Greater(t, r.Seq, int64(100))
			}
		}
		none, err := b.Look(t.Context(), m.Lane, nil, 5)
		require.NoError(t, err)
		require.Empty(t, none)
	})
}

func TestFetch_RowsOfAKeyFromASeqOn(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.Insert("a", "b", "a", "a", "b", "a")
		m := b.Join("one", time.Minute, 100)
		rows, err := b.Fetch(t.Context(), m.Lane, outbox.KeyOf("default", "ordering.order", "ordering::order", "a"), 3, 2)
		require.NoError(t, err)
		require.Len(t, rows, 2)
		require.EqualValues(t, 3, rows[0].Seq)
		require.EqualValues(t, 4, rows[1].Seq)
	})
}

func TestFirst_OnlyClassOne(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		for i := range 9 {
			r := outboxdbtest.Row("k")
			r.Priority = (i%3 - 1) * 10
			b.InsertRows(r)
		}
		m := b.Join("one", time.Minute, 100)
		part := outbox.PartitionOf("k", outboxdbtest.Partitions)
		rows, err := b.First(t.Context(), m.Lane, []relay.PartLow{{Part: part, Low: 3}}, 10)
		require.NoError(t, err)
		require.Len(t, rows, 2)
		require.EqualValues(t, 6, rows[0].Seq)
		require.EqualValues(t, 1, rows[0].Class)
	})
}

// Pages are of the lane, so that their number is bounded by what is due, and rows of
// others' partitions are left out.
func TestDue_PagesInTheOrderOfTime(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.Insert(outboxdbtest.Numbered("k", 30)...)
		m := b.Join("one", time.Minute, 4)
		past, future := "clock_timestamp() - interval '1 minute'", "clock_timestamp() + interval '1 minute'"
		if b.SQLite() {
			past, future = "strftime('%Y-%m-%dT%H:%M:%fZ','now','-1 minutes')", "strftime('%Y-%m-%dT%H:%M:%fZ','now','+1 minutes')"
		}
		b.Exec("UPDATE outbox_queue SET due_at = " + past + " WHERE seq <= 20")
		b.Exec("UPDATE outbox_queue SET due_at = " + future + " WHERE seq BETWEEN 21 AND 25")
		got, pages := 0, 0
		for after := (relay.DueAt{}); ; pages++ {
			rows, next, err := b.Due(t.Context(), m.Lane, m.Parts, after, 7)
			require.NoError(t, err)
			for _, r := range rows {
				require.Contains(t, m.Parts, r.Part)
				require.LessOrEqual(t, r.Seq, int64(20))
			}
			got += len(rows)
			if next == (relay.DueAt{}) {
				break
			}
			after = next
		}
		require.Equal(t, 2, pages)
		mine := 0
		for _, r := range m.Look(100) {
			if r.Seq <= 20 {
				mine++
			}
		}
		require.Equal(t, mine, got)

		p, err := b.Poll(t.Context(), []relay.LaneID{m.Lane})
		require.NoError(t, err)
		require.EqualValues(t, 30, p.Last)
		require.InDelta(t, -time.Minute, *p.Lanes[0].NextDue, float64(50*time.Second))
	})
}

// The last number is read before who writes: one below it that isn't seen yet is of one
// of those.
func TestHorizon_NamesWhoMayStillBringLowerNumbers(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.Insert("a", "b")
		h, err := b.Horizon(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 2, h.Last)
		require.Empty(t, h.Writers)
		if b.SQLite() {
			return
		}
		tx, err := b.DB.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		insert(t, tx, outboxdbtest.Row("late"))
		b.Insert("c")
		h, err = b.Horizon(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 4, h.Last)
		require.Len(t, h.Writers, 1)
		require.NoError(t, tx.Commit())
		h, err = b.Horizon(t.Context())
		require.NoError(t, err)
		require.Empty(t, h.Writers)
	})
}

// O5: how many bytes a row takes is known before its body is read.
func TestLook_O5_KnowsBytes(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		small, large := outboxdbtest.Row("k"), outboxdbtest.Row("k")
		large.Payload = make([]byte, 1<<20)
		b.InsertRows(small, large)
		m := b.Join("one", time.Minute, 100)
		rows := m.Look(10)
		require.Len(t, rows, 2)
		require.InDelta(t, 400, rows[0].Bytes, 200)
		require.InDelta(t, 1<<20, rows[1].Bytes, 1000)
	})
}
