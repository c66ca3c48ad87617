package relay

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/outbox"
)

// readToTheEnd is a track of two partitions that were read to their end, 0 and 1, where something was
// committed since.
func readToTheEnd(b *breakers) *track {
	t := newTrack(b)
	for part := range 2 {
		t.take(part)
	}
	l, _ := t.beginLook(10)
	t.looked(l, nil, time.Now())
	t.pokeAll()
	return t
}

func TestFresh_OfWhatIsNewOnly(t *testing.T) {
	for name, c := range map[string]struct {
		change func(t *track)
		room   int
		want   []PartLow
	}{
		"both":                  {func(*track) {}, 10, []PartLow{{0, 10}, {1, 10}}},
		"nothing was committed": {func(t *track) { t.parts[1].poked = false }, 10, []PartLow{{0, 10}}},
		"a key is known":        {func(t *track) { t.know(QueueRow{Part: 1, Key: 7}) }, 10, []PartLow{{0, 10}}},
		"not read to its end":   {func(t *track) { t.drop(1); t.take(1) }, 10, []PartLow{{0, 10}}},
		"there is another page": {func(t *track) { t.parts[1].more = true }, 10, []PartLow{{0, 10}}},
		"it is to be released":  {func(t *track) { t.retire(1) }, 10, []PartLow{{0, 10}}},
		"others wait":           {func(t *track) { t.listed = 1 }, 10, nil},
		"a topic is away":       {func(t *track) { t.shut(5) }, 10, nil},
		"the broker is away":    {func(t *track) { t.breakers.lane.trip(time.Now(), 0) }, 10, nil},
		"there is no room":      {func(*track) {}, 0, nil},
	} {
		track := readToTheEnd(newBreakers(func() float64 { return 0 }))
		c.change(track)
		l, ok := track.beginFresh(20, c.room)
		require.Equal(t, len(c.want) > 0, ok, name)
		if ok {
			require.Equal(t, look{parts: c.want, moved: make([]int, len(c.want)), horizon: 20, limit: 4000 / len(c.want)}, l, name)
			again, _ := track.beginFresh(20, c.room)
			require.Empty(t, again.parts, name)
		} else {
			require.True(t, track.parts[0].poked, name)
		}
	}
}

// A key that was in silent calls goes in calls of its own: what was found with it goes
// back, and is chosen as always.
func TestFresh_NothingIsSentWithWhatWasInSilentCalls(t *testing.T) {
	b := newBreakers(func() float64 { return 0 })
	track := readToTheEnd(b)
	b.remember(7, silence{count: 1})
	rows := []QueueRow{{Part: 0, Seq: 11, Key: 6, Bytes: 3}, {Part: 0, Seq: 13, Key: 7, Bytes: 4}, {Part: 1, Seq: 12, Key: 8, Bytes: 5, Class: -1}, {Part: 1, Seq: 14, Key: 8, Bytes: 6}}
	l, ok := track.beginFresh(14, 10)
	require.True(t, ok)
	c := track.chooseFound(rows)
	track.looked(l, rows, time.Now())
	require.True(t, c.unsent)
	require.Equal(t, []RowRef{{0, 11, 6}, {1, 12, 8}, {0, 13, 7}, {1, 14, 8}}, c.rows)
	require.Equal(t, 18, c.bytes)
	require.Equal(t, 4, track.inHand())
	require.Zero(t, track.listed, "what is in hand isn't listed")
	require.Equal(t, []int64{14, 14}, []int64{track.parts[0].low, track.parts[1].low})

	left := false
	f := &flight{c: c, rows: make([]Claimed, 2), leave: func() { left = true }}
	require.Equal(t, map[int]error{0: errUnsent, 1: errUnsent}, f.call())
	require.True(t, left)
	track.handBack(c)
	require.Equal(t, 4, track.listed)
	first := track.choose(time.Now(), limits{rows: 10, bytes: 100})
	second := track.choose(time.Now(), limits{rows: 10, bytes: 100})
	require.ElementsMatch(t, []int{0, 1}, []int{first.count, second.count})
	require.ElementsMatch(t, []int{1, 3}, []int{len(first.rows), len(second.rows)})
}

// Rest is after looks that claim, too: each kind is compared with the best of its own.
func TestFresh_PaceComparesEachKindWithItsBest(t *testing.T) {
	var p pace
	for range 100 {
		p.looked(false, time.Millisecond)
		p.looked(true, 3*time.Millisecond)
	}
	require.Zero(t, p.rest(100))
	for range 100 {
		p.looked(true, 6*time.Millisecond)
	}
	require.Positive(t, p.rest(100))
}

// With no bytes left it wakes nobody: two lanes would wake each other without an end.
func TestFresh_WithoutBytesItWakesNobody(t *testing.T) {
	gate := NewGate()
	gate.bytes.left = 0
	l := &lane{r: &Relay{gate: gate, cfg: Config{Outbox: outbox.Config{}.WithDefaults()}}, wake: newWake()}
	other := newWake()
	gate.refused(other)
	require.NoError(t, l.claimFresh(t.Context(), nil))
	require.False(t, other.rung())
	require.True(t, gate.want(time.Now()))
	require.True(t, gate.enter(), "it has left the gate")
}
