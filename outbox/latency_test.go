package outbox

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// observe counts rows that were published after they took so long, as of a time.
func (l *latencies) observe(now time.Time, waits ...time.Duration) {
	rows, outcomes := make([]Claimed, len(waits)), make([]Outcome, len(waits))
	for i, w := range waits {
		rows[i].Waited, outcomes[i].Status = w-time.Millisecond, Published
	}
	// What was not published has no latency.
	l.add(now, append(rows, Claimed{Waited: time.Hour}), append(outcomes, Outcome{Status: Failed}), time.Millisecond)
}

// What is shown are the quantiles of about a minute, and every row since the start.
func TestLatencies(t *testing.T) {
	var l latencies
	begin := time.Unix(1_000_000, 0)
	require.Nil(t, l.lately(begin))
	require.Zero(t, l.total().Count)

	l.observe(begin, slices.Repeat([]time.Duration{1500 * time.Microsecond}, 98)...)
	l.observe(begin.Add(20*time.Second), 3*time.Second, 90*time.Second)
	recent := l.lately(begin.Add(20 * time.Second))
	require.InDelta(t, 1.5, float64(recent.P50)/float64(time.Millisecond), 0.05) // in the middle of its bucket
	require.Equal(t, 5*time.Second, recent.P99)                                  // at the end of its bucket

	recent = l.lately(begin.Add(70 * time.Second)) // the first ones are over
	require.Equal(t, 5*time.Second, recent.P50)
	require.Greater(t, recent.P99, time.Minute)
	require.Less(t, recent.P99, 5*time.Minute)
	require.Nil(t, l.lately(begin.Add(80*time.Second)))
	require.Nil(t, l.lately(begin), "a clock that goes back brings nothing back")

	all := l.total()
	require.EqualValues(t, 100, all.Count)
	require.Equal(t, 98*1500*time.Microsecond+93*time.Second, all.Sum)
	require.EqualValues(t, 0, all.Buckets[0.001])
	require.EqualValues(t, 98, all.Buckets[0.002])
	require.EqualValues(t, 98, all.Buckets[2])
	require.EqualValues(t, 99, all.Buckets[5])
	require.EqualValues(t, 100, all.Buckets[300])
	require.EqualValues(t, 100, all.Buckets[172800])

	l.observe(begin.Add(24*time.Hour), 1000*time.Hour, -time.Hour) // the database's clock was set back
	recent = l.lately(begin.Add(24 * time.Hour))
	require.Equal(t, 48*time.Hour, recent.P99)
	require.LessOrEqual(t, recent.P50, time.Millisecond)
	require.EqualValues(t, 102, l.total().Count)
	require.EqualValues(t, 101, l.total().Buckets[172800])
}
