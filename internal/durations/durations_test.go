package durations_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/durations"
	"github.com/waybill-go/waybill/internal/waittest"
)

func TestCounter_QuantilesOfTheLastMinuteAndOfAll(t *testing.T) {
	var c durations.Counter
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	require.Nil(t, c.Lately(now))
	require.Nil(t, c.Ever())
	for range 98 {
		c.Add(now, 15*time.Millisecond)
	}
	c.Add(now.Add(time.Second), 4*time.Second, 4*time.Second)
	for _, q := range []*durations.Quantiles{c.Lately(now.Add(2 * time.Second)), c.Ever()} {
		require.Greater(t, q.P50, 10*time.Millisecond)
		require.LessOrEqual(t, q.P50, 20*time.Millisecond)
		require.Greater(t, q.P99, 2*time.Second)
		require.LessOrEqual(t, q.P99, 5*time.Second)
	}

	later := now.Add(2 * time.Minute)
	require.Nil(t, c.Lately(later))
	c.Add(later, 72*time.Hour)
	require.Equal(t, 48*time.Hour, c.Lately(later).P50, "what took longer than two days counts as two days")
	require.Less(t, c.Ever().P50, 20*time.Millisecond)
	c.Add(now, 15*time.Millisecond) // a clock that was set back
	require.NotNil(t, c.Lately(later))
}

func TestCounter_TotalIsAHistogram(t *testing.T) {
	var c durations.Counter
	c.Add(time.Now(), -time.Second, time.Millisecond, 1500*time.Millisecond, 72*time.Hour)
	got := c.Total()
	require.EqualValues(t, 4, got.Count)
	require.Equal(t, 72*time.Hour+1501*time.Millisecond, got.Sum)
	for le, n := range map[float64]uint64{0.001: 2, 1: 2, 2: 3, 172800: 3} {
		require.Equal(t, n, got.Buckets[le], le)
	}
}

func TestCounter_ManyAtATime(t *testing.T) {
	var c durations.Counter
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 100 {
				c.Add(time.Now(), time.Millisecond)
				c.Lately(time.Now())
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 800, c.Total().Count)
}

// The last minute is that of the monotonic clock: where the machine's is set back by hours, it isn't
// hours long, and where it is set forward, it hasn't passed.
func TestCounter_AClockThatIsSetChangesNotTheLastMinute(t *testing.T) {
	for _, by := range []time.Duration{-3 * time.Hour, 3 * time.Hour} {
		var c durations.Counter
		begin := time.Now()
		c.Add(begin, time.Second)
		require.NotNil(t, c.Lately(waittest.Set(begin.Add(10*time.Second), by)), by)
		require.Nil(t, c.Lately(waittest.Set(begin.Add(2*time.Minute), by)), by)
	}
}
