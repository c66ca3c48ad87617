package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func newCounter(load func(context.Context) int) (*cached[int], *lookouts) {
	l := newLookouts()
	return newCached(load, l, 5*time.Second, time.Second), l
}

func TestCached_HammeringLoadsOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var loads atomic.Int64
		c, l := newCounter(func(context.Context) int { return int(loads.Add(1)) })
		defer l.stop()
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				for range 20 { // over two seconds
					_, ok := c.get(t.Context())
					require.True(t, ok)
					<-time.After(100 * time.Millisecond)
				}
			})
		}
		all.Wait()
		require.EqualValues(t, 2, loads.Load())
		<-time.After(time.Minute)
		require.EqualValues(t, 2, loads.Load(), "nobody asked")
	})
}

// What takes long to count isn't counted all the time, however many ask.
func TestCached_CountingRestsFourTimesAsLongAsItTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var loads atomic.Int64
		l := newLookouts()
		defer l.stop()
		c := newCount(func(context.Context) int {
			<-time.After(2 * time.Second)
			return int(loads.Add(1))
		}, l)
		began := time.Now()
		for time.Since(began) < time.Minute {
			v, ok := c.recent(t.Context())
			require.Equal(t, time.Since(began) >= 2*time.Second, ok, "it is known once it has been counted")
			require.EqualValues(t, loads.Load(), v)
			<-time.After(100 * time.Millisecond)
		}
		require.EqualValues(t, 6, loads.Load(), "every ten seconds")
	})
}

// A81: a hung collection cannot delay a probe.
func TestCached_A81_AHungLoadIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hung atomic.Bool
		hung.Store(true)
		c, l := newCounter(func(ctx context.Context) int {
			if hung.Load() {
				<-ctx.Done()
			}
			return 1
		})
		defer l.stop()
		began := time.Now()
		_, ok := c.get(t.Context())
		require.False(t, ok, "not known")
		require.Equal(t, time.Second, time.Since(began))

		gone, cancel := context.WithCancel(t.Context())
		cancel()
		began = time.Now()
		_, ok = c.get(gone)
		require.False(t, ok)
		require.Zero(t, time.Since(began), "whoever asked has left")

		hung.Store(false)
		<-time.After(5*time.Second + freshFor)
		v, ok := c.get(t.Context())
		require.True(t, ok)
		require.Equal(t, 1, v)
	})
}

func TestCached_NothingStartsAfterTheEnd(t *testing.T) {
	c, l := newCounter(func(context.Context) int { return 1 })
	l.stop()
	_, ok := c.get(t.Context())
	require.False(t, ok)
}
