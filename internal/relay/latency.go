package relay

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill/outbox"
)

// latencyBounds are how long what is in a bucket took at most.
var latencyBounds = [...]time.Duration{
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second,
	30 * time.Second, time.Minute, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 12 * time.Hour, 48 * time.Hour,
}

// latencyTurn is how long a turn lasts: the latest ones together are about a minute.
const latencyTurn = 10 * time.Second

// latencies count rows by how long they took. It is safe for concurrent use.
type latencies struct {
	mu     sync.Mutex
	all    counts
	sum    time.Duration
	recent [6]counts
	turn   int64 // the number of the latest one
}

type counts [len(latencyBounds) + 1]uint64

// add counts rows that were published, each with the time that it took.
func (l *latencies) add(now time.Time, took []time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	latest := l.advance(now)
	for _, d := range took {
		d = max(d, 0)
		bucket, _ := slices.BinarySearch(latencyBounds[:], d)
		l.all[bucket]++
		latest[bucket]++
		l.sum += d
	}
}

func (l *latencies) advance(now time.Time) (latest *counts) {
	turn := now.UnixNano() / int64(latencyTurn)
	for steps := 0; l.turn < turn && steps < len(l.recent); steps++ {
		l.turn++
		l.recent[l.turn%int64(len(l.recent))] = counts{}
	}
	l.turn = max(l.turn, turn)
	return &l.recent[l.turn%int64(len(l.recent))]
}

// lately is nil if nothing was published in the last minute.
func (l *latencies) lately(now time.Time) *outbox.Latency {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance(now)
	var together counts
	total := uint64(0)
	for _, r := range l.recent {
		for i, n := range r {
			together[i] += n
			total += n
		}
	}
	if total == 0 {
		return nil
	}
	return &outbox.Latency{P50: together.quantile(0.5, total), P99: together.quantile(0.99, total)}
}

// quantile supposes that what is in a bucket is spread evenly, as Prometheus does.
func (c counts) quantile(q float64, total uint64) time.Duration {
	rank, below, lower := q*float64(total), 0.0, time.Duration(0)
	for i, upper := range latencyBounds {
		n := float64(c[i])
		if below+n >= rank && n > 0 {
			return lower + time.Duration(float64(upper-lower)*(rank-below)/n)
		}
		below, lower = below+n, upper
	}
	return lower
}

func (l *latencies) total() outbox.Latencies {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := outbox.Latencies{Sum: l.sum, Buckets: make(map[float64]uint64, len(latencyBounds))}
	for i, n := range l.all {
		if t.Count += n; i < len(latencyBounds) {
			t.Buckets[latencyBounds[i].Seconds()] = t.Count
		}
	}
	return t
}

// rate counts, and knows how many there were in the last ten seconds.
type rate struct {
	total atomic.Int64
	mu    sync.Mutex
	slots [10]int64
	at    int64 // the second of the newest slot
}

func (r *rate) add(n int) {
	r.total.Add(int64(n))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.advance()
	r.slots[r.at%int64(len(r.slots))] += int64(n)
}

func (r *rate) perSecond() float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.advance()
	var sum int64
	for _, n := range r.slots {
		sum += n
	}
	return float64(sum) / float64(len(r.slots))
}

func (r *rate) advance() {
	now := time.Now().Unix()
	for steps := 0; r.at < now && steps < len(r.slots); steps++ {
		r.at++
		r.slots[r.at%int64(len(r.slots))] = 0
	}
	r.at = now
}
