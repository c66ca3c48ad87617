package outbox_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/outbox"
)

// policy is the default one with some fields changed.
func policy(change func(*outbox.RetryPolicy)) outbox.RetryPolicy {
	p := outbox.Config{}.WithDefaults().Retry
	p.Jitter = -1
	change(&p)
	return p
}

// policies are one per key, with the delays that follow from it, in seconds.
var policies = map[string]struct {
	outbox.RetryPolicy
	delays []float64
}{
	"default without jitter":  {policy(func(*outbox.RetryPolicy) {}), []float64{60, 120, 240, 480, 960, 1920, 3600, 3600, 3600}},
	"base_delay":              {policy(func(p *outbox.RetryPolicy) { p.BaseDelay = 5 * time.Second }), []float64{5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600}},
	"multiplier 3":            {policy(func(p *outbox.RetryPolicy) { p.Multiplier = 3 }), []float64{60, 180, 540, 1620, 3600}},
	"multiplier 1.5":          {policy(func(p *outbox.RetryPolicy) { p.Multiplier = 1.5 }), []float64{60, 90, 135, 202.5}},
	"multiplier 1":            {policy(func(p *outbox.RetryPolicy) { p.Multiplier = 1 }), []float64{60, 60, 60}},
	"max_backoff":             {policy(func(p *outbox.RetryPolicy) { p.MaxBackoff = 100 * time.Second }), []float64{60, 100, 100}},
	"max_backoff at the base": {policy(func(p *outbox.RetryPolicy) { p.MaxBackoff = time.Minute }), []float64{60, 60}},
}

// S3-15, S2-21, D4, A46: base_delay, multiplier and max_backoff have their
// effect, exactly; attempt 1 is immediate, attempt 2 is 60 s after it, attempt 3
// is 120 s after that, and none is later than max_backoff.
func TestRetryPolicy_S3_15_A46_DelaysAreExact(t *testing.T) {
	for name, p := range policies {
		t.Run(name, func(t *testing.T) {
			for i, want := range p.delays {
				for _, random := range []float64{0, 0.5, 0.999} {
					require.Equal(t, time.Duration(want*float64(time.Second)), p.Delay(i+1, random), "after attempt %d", i+1)
				}
			}
			require.LessOrEqual(t, p.Delay(1000000, 0), p.MaxBackoff)
		})
	}
}

// S3-16, A46, F-22: with jitter a delay is at most a quarter shorter or longer,
// both ends are reached, and rows that fail together come back spread.
// Conformance: D4.
func TestRetryPolicy_S3_16_F_22_JitterSpreads(t *testing.T) {
	p := policy(func(p *outbox.RetryPolicy) { p.Jitter = 0.25 })
	for attempt, d := range map[int]time.Duration{1: time.Minute, 3: 4 * time.Minute, 9: time.Hour} {
		require.Equal(t, d*3/4, p.Delay(attempt, 0))
		require.Equal(t, d, p.Delay(attempt, 0.5))
		require.InDelta(t, float64(d)*5/4, float64(p.Delay(attempt, math.Nextafter(1, 0))), float64(time.Microsecond))

		random := rand.New(rand.NewPCG(1, uint64(attempt)))
		seconds := map[int]int{}
		var sum time.Duration
		shortest, longest := time.Duration(math.MaxInt64), time.Duration(0)
		for range 1000 {
			delay := p.Delay(attempt, random.Float64())
			require.GreaterOrEqual(t, delay, d*3/4)
			require.LessOrEqual(t, delay, d*5/4)
			shortest, longest, sum = min(shortest, delay), max(longest, delay), sum+delay
			seconds[int(delay/time.Second)]++
		}
		require.GreaterOrEqual(t, longest-shortest, d*2/5, "of a possible half")
		require.InEpsilon(t, float64(d), float64(sum/1000), 0.02, "neither earlier nor later on average")
		for second, n := range seconds {
			require.Less(t, n, 100, "rows due in second %d", second)
		}
	}
	full := policy(func(p *outbox.RetryPolicy) { p.Jitter = 1 })
	require.Zero(t, full.Delay(1, 0))
	require.Equal(t, 90*time.Second, full.Delay(1, 0.75))
}

func TestRetryPolicy_HorizonIsTheSumOfTheLongestDelays(t *testing.T) {
	for name, c := range map[string]struct {
		outbox.RetryPolicy
		want time.Duration
	}{
		"default":        {outbox.Config{}.WithDefaults().Retry, (60 + 120 + 240 + 480) * time.Second * 5 / 4},
		"without jitter": {policy(func(*outbox.RetryPolicy) {}), 15 * time.Minute},
		"cap":            {policy(func(p *outbox.RetryPolicy) { p.MaxBackoff = 100 * time.Second }), 360 * time.Second},
		"full jitter":    {policy(func(p *outbox.RetryPolicy) { p.Jitter = 1 }), 30 * time.Minute},
		"one attempt":    {policy(func(p *outbox.RetryPolicy) { p.MaxAttempts = 1 }), 0},
		"most attempts":  {policy(func(p *outbox.RetryPolicy) { p.MaxAttempts, p.Multiplier = 1000000, 1 }), 999999 * time.Minute},
		"for ever": {policy(func(p *outbox.RetryPolicy) {
			p.MaxAttempts, p.BaseDelay, p.MaxBackoff = 1000000, time.Hour, 1e6*time.Hour
		}), math.MaxInt64},
		"zero": {outbox.RetryPolicy{}, 0},
	} {
		require.Equal(t, c.want, c.Horizon(), name)
	}
	p := policy(func(p *outbox.RetryPolicy) { p.MaxAttempts, p.Jitter = 9, 0.25 })
	var sum time.Duration
	for attempt := range p.MaxAttempts - 1 {
		sum += p.Delay(attempt+1, math.Nextafter(1, 0))
	}
	require.InDelta(t, float64(sum), float64(p.Horizon()), float64(time.Microsecond), "no run of delays is longer")
}

func ExampleRetryPolicy_Delay() {
	p := outbox.Config{}.WithDefaults().Retry
	p.Jitter = -1
	for attempt := 1; attempt <= 8; attempt++ {
		fmt.Println(p.Delay(attempt, 0))
	}
	// Output:
	// 1m0s
	// 2m0s
	// 4m0s
	// 8m0s
	// 16m0s
	// 32m0s
	// 1h0m0s
	// 1h0m0s
}
