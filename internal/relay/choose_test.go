package relay

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/outbox"
)

func (p *pump) chosen() (seqs []int64) {
	c := p.choose()
	if c == nil {
		return nil
	}
	return seqsOf(c.rows)
}

// O6: higher classes go first, and take along what is before them in their key;
// class -1 goes last. Every fourth choice goes by age, so that none starves.
func TestChoose_HigherClassFirstEveryFourthByAge(t *testing.T) {
	row := func(seq, key int64, class int8) QueueRow {
		return QueueRow{Seq: seq, Key: key, Topic: 1, Class: class, Bytes: 1}
	}
	p := newPump(1, row(1, 1, -1), row(2, 2, 0), row(3, 3, 0), row(4, 4, 1), row(5, 3, 1), row(6, 1, -1), row(7, 5, 0))
	p.look()
	var order [][]int64
	for range 5 {
		c := p.t.choose(p.now, limits{rows: 2, bytes: 1})
		order = append(order, seqsOf(c.rows))
	}
	require.Equal(t, [][]int64{{3}, {4}, {2}, {1}, {7}}, order, "the fourth by age")
}

// What a look adds to a key that is listed counts at once, in each look again.
func TestChoose_ARowOfAHigherClassRaisesItsKey(t *testing.T) {
	row := func(seq, key int64, class int8) QueueRow {
		return QueueRow{Seq: seq, Key: key, Topic: 1, Class: class, Bytes: 1}
	}
	p := newPump(1, row(1, 1, 0), row(2, 2, 0))
	p.look()
	p.add(row(3, 2, 1))
	p.t.pokeAll()
	p.look()
	require.Equal(t, []int64{2}, seqsOf(p.t.choose(p.now, limits{rows: 1, bytes: 1}).rows))
}

// O6: 5,000 priorities are three classes, and a backlog of any of them costs a
// choice no more than another.
func TestChoose_ClassOneBehindThePageWantsItsKey(t *testing.T) {
	rows := queue(1, 40000, 1)
	rows[39000].Key, rows[39500].Key, rows[39500].Class = 77, 77, 1
	p := newPump(1, rows...)
	p.look()
	require.True(t, p.t.behind())
	require.Nil(t, p.t.keys[77])
	p.t.first([]QueueRow{rows[39500]}, p.now)
	p.fetch()
	require.Equal(t, []int64{39001, 39501}, func() []int64 {
		c := p.t.choose(p.now, limits{rows: 2, bytes: claimBytes})
		return seqsOf(c.rows)
	}(), "with what is before it")
	p.t.first([]QueueRow{rows[39500]}, p.now)
	_, again := p.t.nextFetch(p.now)
	require.False(t, again, "it is in hand")
}

// O5: a claim is bounded by bytes that are known before bodies are read; a row
// that is larger than that goes alone.
func TestChoose_IsBoundedByBytes(t *testing.T) {
	rows := queue(1, 20, 1)
	for i := range rows {
		rows[i].Bytes = 1 << 20
	}
	rows[8].Bytes = 20 << 20
	p := newPump(1, rows...)
	require.Len(t, p.chosen(), 8)
	require.Equal(t, []int64{9}, p.chosen())
	require.Len(t, p.chosen(), 8)
	require.Len(t, p.chosen(), 3)
	require.Nil(t, p.chosen())
}

// O11: what is held in one category holds nothing of the same id in another.
func TestChoose_AKeyHasItsCategory(t *testing.T) {
	order, invoice := outbox.KeyOf("kafka", "t", "ordering", "42"), outbox.KeyOf("kafka", "t", "billing", "42")
	p := newPump(1)
	p.due[1] = p.now.Add(time.Hour)
	p.add(QueueRow{Seq: 1, Key: order, Topic: 1}, QueueRow{Seq: 2, Key: order, Topic: 1}, QueueRow{Seq: 3, Key: invoice, Topic: 1})
	require.Equal(t, []int64{3}, p.chosen())
	require.Nil(t, p.chosen())
}

// A key has at most one call, and its run goes whole, so that others have other
// keys.
func TestChoose_AKeyIsInOneCallAndGoesWhole(t *testing.T) {
	rows := queue(1, 800, 1)
	for i := range rows {
		rows[i].Key = int64(1 + i%2)
	}
	p := newPump(1, rows...)
	c := p.choose()
	require.Len(t, c.rows, 500)
	require.Len(t, c.keys, 2)
	require.Len(t, c.keys[0].entries, 400)
	require.True(t, slices.IsSorted(seqsOf(c.rows)))
	require.Nil(t, p.choose(), "both keys are in hand")
	p.t.handBack(c)
	require.Len(t, p.chosen(), 500)
}

// A row with two losses is claimed alone, and what is behind it waits for it.
// Conformance: S2-29.
func TestChoose_QuarantineIsAlone(t *testing.T) {
	rows := queue(1, 4, 1)
	rows[1].Losses, rows[2].Key = 2, rows[1].Key
	p := newPump(1, rows...)
	p.look()
	require.Equal(t, 1, p.t.quarantined())
	c := p.t.choose(p.now, limits{rows: 10, bytes: 1000})
	require.Equal(t, []int64{1, 4}, seqsOf(c.rows))
	require.Nil(t, p.t.choose(p.now, limits{rows: 10, bytes: 1000}))
	c = p.t.choose(p.now, limits{rows: 10, bytes: 1000, alone: true})
	require.Equal(t, []int64{2}, seqsOf(c.rows))
	require.True(t, c.alone)
	require.True(t, c.durable)
}

// With 16,000 rows listed a claim costs by its own rows, not by theirs.
func BenchmarkChoose(b *testing.B) {
	rows := queue(1, 16000, 1)
	t := newTrack(newBreakers(func() float64 { return 0.5 }))
	t.take(0)
	t.looked(look{parts: []PartLow{{}}, limit: 1 << 20, horizon: 1 << 40, moved: []int{0}}, rows, time.Unix(1, 0))
	for _, n := range []int{1, 500} {
		b.Run(map[int]string{1: "one row", 500: "500 rows"}[n], func(b *testing.B) {
			for b.Loop() {
				c := t.choose(time.Unix(1, 0), limits{rows: n, bytes: claimBytes})
				t.handBack(c)
			}
		})
	}
}

func BenchmarkLook(b *testing.B) {
	rows := queue(1, 4000, 1)
	for b.Loop() {
		t := newTrack(newBreakers(func() float64 { return 0.5 }))
		t.take(0)
		t.looked(look{parts: []PartLow{{}}, limit: 4000, horizon: 1 << 40, moved: []int{0}}, rows, time.Unix(1, 0))
	}
}

// A partition that is being released goes when nothing of it is in hand: nothing more is
// chosen from it, neither what was listed at that time nor what is handed back behind it.
func TestChoose_NothingFromAPartitionThatIsBeingReleased(t *testing.T) {
	p := newPump(1, queue(1, 8, 4)...)
	p.look()
	c := p.t.choose(p.now, limits{rows: 2, bytes: claimBytes})
	require.Len(t, c.rows, 2)
	p.t.retire(c.rows[0].Part)
	require.Nil(t, p.chosen())
	p.t.handBack(c)
	require.False(t, p.t.busy(c.rows[0].Part), "it can go")
	require.Nil(t, p.chosen())
}
