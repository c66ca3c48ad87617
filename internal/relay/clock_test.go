package relay

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/waittest"
)

// A key whose rows couldn't be read is read a second later, also where the machine's clock is set
// back meanwhile: its rows would stand still for as long as that. Set forward, it isn't early.
func TestFetch_AClockThatIsSetKeepsNoKeyWaiting(t *testing.T) {
	now := time.Now()
	for _, by := range []time.Duration{-2 * time.Hour, 2 * time.Hour} {
		tr := newTrack(newBreakers(func() float64 { return 0.5 }))
		tr.take(0)
		tr.due([]DueRow{{Seq: 7, Key: 3}})
		f, ok := tr.nextFetch(now)
		require.True(t, ok)
		tr.fetchFailed(f, now)
		_, ok = tr.nextFetch(waittest.Set(now.Add(checkFirst-time.Millisecond), by))
		require.False(t, ok, by)
		at, ok := tr.checkAt()
		require.True(t, ok)
		require.Equal(t, checkFirst, at.Sub(now), "which its lane waits for")
		f, ok = tr.nextFetch(waittest.Set(now.Add(checkFirst), by))
		require.True(t, ok, by)
		require.EqualValues(t, 3, f.key)
	}
}
