package outboxtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/outbox"
)

// insert stores one row of a key with a priority.
func (b *Bench) insert(key string, priority int) {
	b.T.Helper()
	row := Row(key)
	row.Priority = priority
	b.InsertRows(row)
}

// prioritiesFirst: between keys the larger priority goes first, and what has the
// same goes by age; below 0 comes after what has none.
func prioritiesFirst(t *testing.T, b *Bench) {
	for i, priority := range []int{-100, 0, 7, 0, 7, -100, 100} {
		b.insert([]string{"bulk", "a", "high", "b", "higher", "bulk too", "urgent"}[i], priority)
	}
	w := b.Worker("w1", Partitions, time.Minute)
	var order []string
	for range 7 {
		*w.Flights = Flights{} // no turn of those that wait for others
		c := w.Claim(1)
		order = append(order, Keys(c)...)
		w.Settle(c, All(c, published())...)
	}
	require.Equal(t, []string{"urgent", "high", "higher", "a", "b", "bulk", "bulk too"}, order)
	require.Empty(t, w.Claim(1).Rows)
}

// neverWithinAKey: what is before an urgent row in its key goes along, and before
// it; what is behind it waits for its own turn.
func neverWithinAKey(t *testing.T, b *Bench) {
	b.insert("other", 0)
	for _, priority := range []int{0, -100, 100, 0} {
		b.insert("k", priority)
	}
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(3)
	require.Equal(t, []string{"k", "k", "k"}, Keys(c))
	require.Equal(t, b.Entries()[1].Seq, c.Rows[0].Seq)
	require.Equal(t, b.Entries()[3].Seq, c.Rows[2].Seq)
	require.Equal(t, []string{"other"}, Keys(w.Claim(5)), "its key is in hand")
	// A head that waits holds an urgent row as any other.
	w.Settle(c, outbox.Outcome{Seq: c.Rows[0].Seq, Status: outbox.Failed, Class: "transient", Error: "x", After: time.Hour},
		outbox.Outcome{Seq: c.Rows[1].Seq, Status: outbox.Pending, Unspent: true},
		outbox.Outcome{Seq: c.Rows[2].Seq, Status: outbox.Pending, Unspent: true})
	again := w.Claim(5)
	require.Empty(t, again.Rows)
	require.Positive(t, again.Next)
}

// nobodyStarves: while there is always something urgent, the rest goes on, the
// oldest first, and urgent rows get the larger part.
func nobodyStarves(t *testing.T, b *Bench) {
	b.insert("bulk", -100)
	b.insert("normal", 0)
	w := b.Worker("w1", Partitions, time.Minute)
	memory := &outbox.Memory{}
	var order []string
	for i := 0; len(order) < 40; i++ {
		b.insert(Numbered("urgent", i+1)[i], 10)
		c, err := b.Claim(t.Context(), outbox.ClaimRequest{Target: "default", Worker: "w1", Leases: w.Leases, Limit: 1, MaxAttempts: 5, Memory: memory})
		require.NoError(t, err)
		order = append(order, Keys(c)...)
		w.Settle(c, All(c, published())...)
	}
	require.Contains(t, order[:8], "bulk", "the oldest of all")
	require.Contains(t, order[:12], "normal")
	require.NotContains(t, order[:3], "bulk")
}

// behindAFlood: what is old and not urgent keeps neither urgent rows nor those
// without a priority waiting, however much it is.
func behindAFlood(t *testing.T, b *Bench) {
	for range 3 {
		var flood []outbox.Row
		for _, key := range Numbered("bulk", 100) {
			row := Row(key)
			row.Priority = -100
			flood = append(flood, row)
		}
		b.InsertRows(flood...)
	}
	b.Insert("a", "b")
	b.insert("urgent", 1)
	w := b.Worker("w1", Partitions, time.Minute)
	require.ElementsMatch(t, []string{"a", "b", "urgent"}, Keys(w.Claim(3)))
	for n := 300; n > 0; n -= 100 {
		c := w.Claim(100)
		require.Len(t, c.Rows, 100)
		w.Settle(c, All(c, published())...)
	}
	require.Empty(t, w.Claim(10).Rows)
}
