package outbox_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/outbox"
)

func TestConfig_DefaultsPass(t *testing.T) {
	require.NoError(t, outbox.Config{}.Check())
	require.Equal(t, outbox.Config{
		Calls: 8, BatchSize: 500, PollInterval: time.Second, MaxPollInterval: 5 * time.Second,
		Lease: 30 * time.Second, PublishTimeout: 15 * time.Second, OnAbandoned: outbox.Skip, OnFailover: outbox.Stop,
		Retry:     outbox.RetryPolicy{MaxAttempts: 5, BaseDelay: time.Minute, Multiplier: 2, MaxBackoff: time.Hour, Jitter: 0.25},
		Retention: outbox.Retention{Published: 168 * time.Hour, Abandoned: 720 * time.Hour, Every: time.Hour},
	}, outbox.Config{}.WithDefaults())
}

// What is left out never makes what is written unsafe: the defaults give way.
func TestConfig_DefaultsFitWhatIsWritten(t *testing.T) {
	for _, lease := range []time.Duration{time.Second, 1001 * time.Millisecond, 5 * time.Second, 33 * time.Second, 50 * time.Second, time.Minute, time.Hour, 1000 * time.Hour} {
		require.NoError(t, outbox.Config{Lease: lease}.Check(), lease)
	}
	for _, timeout := range []time.Duration{1, time.Second, 15 * time.Second, time.Minute, time.Hour, math.MaxInt64} {
		c := outbox.Config{PublishTimeout: timeout}.WithDefaults()
		require.Equal(t, max(30*time.Second, 2*min(timeout, math.MaxInt64/2)), c.Lease)
	}
	require.NoError(t, outbox.Config{PublishTimeout: time.Hour}.Check())
	require.NoError(t, outbox.Config{PollInterval: time.Minute}.Check())
	for _, attempts := range []int{1, 2, 5, 1000, 1000000} {
		require.NoError(t, outbox.Config{Retry: outbox.RetryPolicy{MaxAttempts: attempts}}.Check(), attempts)
	}
	long := outbox.Config{Retry: outbox.RetryPolicy{MaxAttempts: 10000}}.WithDefaults()
	require.Equal(t, long.Retry.Horizon()+long.Lease, long.Retention.Published)
	require.Equal(t, long.Retry.Horizon()+long.Lease, long.Retention.Abandoned)
}

// S2-08: every setting can be set, and what is unsafe or senseless is refused
// with its key, its value, the reason and the remedy; its safe neighbour is
// taken.
func TestConfig_S2_08_RefusesWhatIsUnsafe(t *testing.T) {
	type config = outbox.Config
	retry := func(p outbox.RetryPolicy) config { return config{Retry: p} }
	retention := func(r outbox.Retention) config {
		// 60 s, 120 s, 240 s and 480 s, and a quarter more; and 30 s: 1155 s.
		return config{Retention: r}
	}
	const horizon = 1155 * time.Second
	for name, c := range map[string]struct {
		unsafe, safe config
		want         string
	}{
		"calls":            {config{Calls: -1}, config{Calls: 1}, "outbox.calls is -1: at least 1"},
		"empty batches":    {config{BatchSize: -1}, config{BatchSize: 1}, "outbox.batch_size is -1: from 1 to 10000"},
		"endless batches":  {config{BatchSize: 10001}, config{BatchSize: 10000}, "outbox.batch_size is 10001: from 1 to 10000"},
		"poll interval":    {config{PollInterval: -1}, config{PollInterval: 1}, "outbox.poll_interval is -1ns: above 0"},
		"longest interval": {config{MaxPollInterval: 999 * time.Millisecond}, config{MaxPollInterval: time.Second}, "outbox.max_poll_interval is 999ms: not below poll_interval, which is 1s"},
		"lease": {
			config{Lease: 999 * time.Millisecond},
			config{Lease: time.Second},
			"outbox.lease is 999ms: at least 1s, or members lose what they are publishing",
		},
		"a call as long as its lease": {
			config{Lease: 10 * time.Second, PublishTimeout: 10 * time.Second},
			config{Lease: 20 * time.Second, PublishTimeout: 10 * time.Second},
			"outbox.publish_timeout is 10s: above 0 and below 9s, which is the lease, 10s, less a margin",
		},
		"a call that leaves no margin": {
			config{Lease: 10 * time.Second, PublishTimeout: 9 * time.Second},
			config{Lease: 10 * time.Second, PublishTimeout: 9*time.Second - 1},
			"or a call outlasts its lease and another member publishes its rows, too; lower it, or raise outbox.lease",
		},
		"the margin is 5s at most": {
			config{Lease: 5 * time.Minute, PublishTimeout: 295 * time.Second},
			config{Lease: 5 * time.Minute, PublishTimeout: 294 * time.Second},
			"outbox.publish_timeout is 4m55s: above 0 and below 4m55s, which is the lease, 5m0s, less a margin",
		},
		"a call without time":    {config{PublishTimeout: -1}, config{PublishTimeout: 1}, "outbox.publish_timeout is -1ns: above 0"},
		"abandoned":              {config{OnAbandoned: "drop"}, config{OnAbandoned: outbox.Hold}, `outbox.on_abandoned is "drop": "skip" or "hold"`},
		"no attempt":             {retry(outbox.RetryPolicy{MaxAttempts: -1}), retry(outbox.RetryPolicy{MaxAttempts: 1}), "outbox.retry.max_attempts is -1: at least 1"},
		"attempts without end":   {retry(outbox.RetryPolicy{MaxAttempts: 1000001}), retry(outbox.RetryPolicy{MaxAttempts: 1000000}), "outbox.retry.max_attempts is 1000001: at least 1, at most 1000000"},
		"base delay":             {retry(outbox.RetryPolicy{BaseDelay: -1}), retry(outbox.RetryPolicy{BaseDelay: 1}), "outbox.retry.base_delay is -1ns: above 0"},
		"multiplier":             {retry(outbox.RetryPolicy{Multiplier: 0.99}), retry(outbox.RetryPolicy{Multiplier: 1}), "outbox.retry.multiplier is 0.99: at least 1"},
		"multiplier, no number":  {retry(outbox.RetryPolicy{Multiplier: math.NaN()}), retry(outbox.RetryPolicy{Multiplier: 1.5}), "outbox.retry.multiplier is NaN: at least 1"},
		"max backoff":            {retry(outbox.RetryPolicy{MaxBackoff: 59 * time.Second}), retry(outbox.RetryPolicy{MaxBackoff: time.Minute}), "outbox.retry.max_backoff is 59s: not below base_delay, which is 1m0s"},
		"jitter above the delay": {retry(outbox.RetryPolicy{Jitter: 1.01}), retry(outbox.RetryPolicy{Jitter: 1}), "outbox.retry.jitter is 1.01: above 0 and up to 1, or -1 for none"},
		"jitter below none":      {retry(outbox.RetryPolicy{Jitter: -0.25}), retry(outbox.RetryPolicy{Jitter: -1}), "outbox.retry.jitter is -0.25: above 0 and up to 1, or -1 for none"},
		"published rows that are still retried elsewhere": {
			retention(outbox.Retention{Published: horizon - 1}),
			retention(outbox.Retention{Published: horizon}),
			"outbox.retention.published is 19m14.999999999s: at least 19m15s, which is how long a row can be retried (the delays of outbox.retry and a lease), or -1 to keep for ever;" +
				" raise it, or lower outbox.retry.max_attempts or outbox.retry.max_backoff",
		},
		"abandoned rows that are still retried elsewhere": {
			retention(outbox.Retention{Abandoned: horizon - 1}),
			retention(outbox.Retention{Abandoned: horizon}),
			"outbox.retention.abandoned is 19m14.999999999s: at least 19m15s",
		},
		"abandoned rows, when published ones go at once": {
			retention(outbox.Retention{Delete: true, Abandoned: time.Second}),
			retention(outbox.Retention{Delete: true, Abandoned: -1, Published: time.Second}),
			"outbox.retention.abandoned is 1s: at least 19m15s",
		},
		"retention of nothing": {retention(outbox.Retention{Published: -2}), retention(outbox.Retention{Published: -1}), "outbox.retention.published is -2ns: above 0, or -1 to keep for ever"},
		"clean-up interval":    {retention(outbox.Retention{Every: -2}), retention(outbox.Retention{Every: -1}), "outbox.retention.every is -2ns: above 0, or -1 for never"},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorContains(t, c.unsafe.Check(), c.want)
			require.NoError(t, c.safe.Check())
		})
	}
}
