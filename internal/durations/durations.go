// Package durations counts how long things took: all of them, for a histogram, and those
// of the last minute, for people. What it keeps doesn't grow.
package durations

import (
	"slices"
	"sync"
	"time"
)

// Quantiles are estimated; what took longer than two days counts as two days.
type Quantiles struct {
	P50, P99 time.Duration
}

// Total are all durations since the start.
type Total struct {
	Count   uint64
	Sum     time.Duration
	Buckets map[float64]uint64 // how many took so many seconds at most
}

// bounds are how long what is in a bucket took at most.
var bounds = [...]time.Duration{
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second,
	30 * time.Second, time.Minute, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 12 * time.Hour, 48 * time.Hour,
}

// length is that of a turn: the latest ones together are about a minute.
const length = 10 * time.Second

// Counter is safe for concurrent use. Its zero value is ready.
type Counter struct {
	mu     sync.Mutex
	all    counts
	sum    time.Duration
	recent [6]counts
	turn   int64     // the number of the latest one
	born   time.Time // Turns are counted from there, by the monotonic clock: the other one may be set.
}

type counts [len(bounds) + 1]uint64

// Add counts things that have ended now, each with the time that it took.
func (c *Counter) Add(now time.Time, took ...time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	latest := c.advance(now)
	for _, d := range took {
		d = max(d, 0)
		bucket, _ := slices.BinarySearch(bounds[:], d)
		c.all[bucket]++
		latest[bucket]++
		c.sum += d
	}
}

func (c *Counter) advance(now time.Time) (latest *counts) {
	if c.born.IsZero() {
		c.born = now
	}
	turn := int64(now.Sub(c.born) / length)
	for steps := 0; c.turn < turn && steps < len(c.recent); steps++ {
		c.turn++
		c.recent[c.turn%int64(len(c.recent))] = counts{}
	}
	c.turn = max(c.turn, turn)
	return &c.recent[c.turn%int64(len(c.recent))]
}

// Lately is nil if nothing ended in the last minute.
func (c *Counter) Lately(now time.Time) *Quantiles {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance(now)
	var together counts
	for _, r := range c.recent {
		for i, n := range r {
			together[i] += n
		}
	}
	return together.quantiles()
}

// Ever is nil if nothing has ended yet.
func (c *Counter) Ever() *Quantiles {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all.quantiles()
}

func (c counts) quantiles() *Quantiles {
	total := uint64(0)
	for _, n := range c {
		total += n
	}
	if total == 0 {
		return nil
	}
	return &Quantiles{P50: c.quantile(0.5, total), P99: c.quantile(0.99, total)}
}

// quantile supposes that what is in a bucket is spread evenly, as Prometheus does.
func (c counts) quantile(q float64, total uint64) time.Duration {
	rank, below, lower := q*float64(total), 0.0, time.Duration(0)
	for i, upper := range bounds {
		n := float64(c[i])
		if below+n >= rank && n > 0 {
			return lower + time.Duration(float64(upper-lower)*(rank-below)/n)
		}
		below, lower = below+n, upper
	}
	return lower
}

// Total returns all since the start.
func (c *Counter) Total() Total {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := Total{Sum: c.sum, Buckets: make(map[float64]uint64, len(bounds))}
	for i, n := range c.all {
		if t.Count += n; i < len(bounds) {
			t.Buckets[bounds[i].Seconds()] = t.Count
		}
	}
	return t
}
