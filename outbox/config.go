package outbox

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"
)

// DefaultLease is [Config.Lease] where nothing is said.
const DefaultLease = 30 * time.Second

// maxAttempts is more than a century of the default backoff.
const maxAttempts = 1000000

// Config tunes the processors. Its fields are the keys under "outbox:" in YAML.
// In every field 0 stands for the default.
type Config struct {
	// Calls of the broker of a lane that may be out at once. Defaults to 8.
	Calls int
	// BatchSize is how many rows one claim takes at most. The broker has at most two batches of a lane
	// that it hasn't answered, or 1,000 rows if that is more: so many a killed process repeats of a slow
	// broker. With those that are being recorded a lane has three batches in hand, or 1,000. Defaults to 500.
	BatchSize int
	// PollInterval is how long a lane that found nothing waits before it looks
	// again, unless it is woken. Each further empty look doubles it. Defaults to 1 s.
	PollInterval time.Duration
	// MaxPollInterval ends the doubling. Defaults to 5 s.
	MaxPollInterval time.Duration
	// Lease is how long partitions stay with a member that doesn't renew, which
	// it does every third of it. At least 1 s. Defaults to 30 s, or to twice the
	// publish timeout if that is longer. On the host of a process that has died
	// nobody waits for it.
	Lease time.Duration
	// PublishTimeout bounds one call of the broker, whatever timeouts the broker's
	// adapter has. The lease must be longer, by a margin of a tenth of it, at most
	// 5 s: a call that outlasts its lease meets the same rows in another member's
	// hand. Defaults to half the lease, at most 30 s: 15 s.
	PublishTimeout time.Duration
	// OnAbandoned says what becomes of the rows behind an abandoned one of their
	// key. Defaults to Skip.
	OnAbandoned OnAbandoned
	// OnFailover says what becomes of publishing when PostgreSQL's timeline changes: a
	// standby was promoted, or the database was restored to a point in time. Defaults to
	// Stop. Another cluster, another database or another file always stop it.
	OnFailover OnFailover
	Retry      RetryPolicy
	Retention  Retention
}

// OnAbandoned says what becomes of a key one of whose rows was abandoned.
type OnAbandoned string

const (
	// Skip releases the rows behind it.
	Skip OnAbandoned = "skip"
	// Hold keeps them waiting until an operator decides.
	Hold OnAbandoned = "hold"
)

// OnFailover says what becomes of publishing when a standby has become the primary.
type OnFailover string

const (
	// Stop waits until an operator accepts the database: commits that the standby had not
	// got are missing, events among them that were published, and effects of messages that
	// are acknowledged.
	Stop OnFailover = "stop"
	// Continue publishes without being told to. It is for standbys that have every commit
	// (synchronous_standby_names with synchronous_commit on).
	Continue OnFailover = "continue"
)

// RetryPolicy says when a failed row is due again: after BaseDelay ·
// Multiplier^(attempts−1), at most MaxBackoff, give or take Jitter.
type RetryPolicy struct {
	MaxAttempts int           // Then the row is abandoned. At most 1,000,000. Defaults to 5.
	BaseDelay   time.Duration // Before the second attempt. Defaults to 60 s.
	Multiplier  float64       // Defaults to 2.
	MaxBackoff  time.Duration // Defaults to 1 h.
	Jitter      float64       // As a fraction of the delay, up to 1. Defaults to 0.25; -1 is none.
}

// Retention says how long finished rows stay. Rows that are not delivered are
// never removed.
//
// Neither Published nor Abandoned may be shorter than a row can be retried,
// [RetryPolicy.Horizon] and a lease: while one broker's row of a message is still
// retried, the rows of the others are what an operator compares it with, and an
// abandoned one holds what nobody else has.
type Retention struct {
	Delete    bool          // Removes a row as soon as it is published ("mode: delete"); Published has no effect then.
	Published time.Duration // Defaults to 168 h, or to the horizon if that is longer; -1 keeps for ever.
	Abandoned time.Duration // Defaults to 720 h, or to the horizon if that is longer; -1 keeps for ever.
	Every     time.Duration // Between two clean-ups, over all processes. Defaults to 1 h; -1 is never.
}

// WithDefaults returns c with a value in every field.
func (c Config) WithDefaults() Config {
	c.Calls = cmp.Or(c.Calls, 8)
	c.BatchSize = cmp.Or(c.BatchSize, 500)
	c.PollInterval = cmp.Or(c.PollInterval, time.Second)
	c.MaxPollInterval = cmp.Or(c.MaxPollInterval, max(5*time.Second, c.PollInterval))
	c.Lease = cmp.Or(c.Lease, max(DefaultLease, 2*min(c.PublishTimeout, math.MaxInt64/2)))
	c.PublishTimeout = cmp.Or(c.PublishTimeout, min(30*time.Second, c.Lease/2))
	c.OnAbandoned = cmp.Or(c.OnAbandoned, Skip)
	c.OnFailover = cmp.Or(c.OnFailover, Stop)
	c.Retry.MaxAttempts = cmp.Or(c.Retry.MaxAttempts, 5)
	c.Retry.BaseDelay = cmp.Or(c.Retry.BaseDelay, time.Minute)
	c.Retry.Multiplier = cmp.Or(c.Retry.Multiplier, 2)
	c.Retry.MaxBackoff = cmp.Or(c.Retry.MaxBackoff, time.Hour)
	c.Retry.Jitter = cmp.Or(c.Retry.Jitter, 0.25)
	c.Retention.Published = cmp.Or(c.Retention.Published, max(168*time.Hour, c.retried()))
	c.Retention.Abandoned = cmp.Or(c.Retention.Abandoned, max(720*time.Hour, c.retried()))
	c.Retention.Every = cmp.Or(c.Retention.Every, time.Hour)
	return c
}

// Margin is how long before its end a lease isn't relied on any more.
func Margin(lease time.Duration) time.Duration { return min(lease/10, 5*time.Second) }

// Check returns all that is wrong with c, with every field named as in YAML.
func (c Config) Check() error {
	c = c.WithDefaults()
	var errs []error
	must := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("outbox."+format, args...))
		}
	}
	must(c.Calls > 0, "calls is %d: at least 1", c.Calls)
	must(c.BatchSize > 0 && c.BatchSize <= 10000, "batch_size is %d: from 1 to 10000", c.BatchSize)
	must(c.PollInterval > 0, "poll_interval is %v: above 0", c.PollInterval)
	must(c.MaxPollInterval >= c.PollInterval, "max_poll_interval is %v: not below poll_interval, which is %v", c.MaxPollInterval, c.PollInterval)
	must(c.Lease >= time.Second, "lease is %v: at least 1s, or members lose what they are publishing", c.Lease)
	if usable := c.Lease - Margin(c.Lease); c.Lease >= time.Second {
		must(c.PublishTimeout > 0 && c.PublishTimeout < usable, "publish_timeout is %v: above 0 and below %v, which is the lease, %v, less a margin, or a call outlasts its lease and"+
			" another member publishes its rows, too; lower it, or raise outbox.lease", c.PublishTimeout, usable, c.Lease)
	}
	must(c.OnAbandoned == Skip || c.OnAbandoned == Hold, "on_abandoned is %q: %q or %q", c.OnAbandoned, Skip, Hold)
	must(c.OnFailover == Stop || c.OnFailover == Continue, "on_failover is %q: %q or %q", c.OnFailover, Stop, Continue)
	must(c.Retry.MaxAttempts > 0 && c.Retry.MaxAttempts <= maxAttempts, "retry.max_attempts is %d: at least 1, at most %d", c.Retry.MaxAttempts, maxAttempts)
	must(c.Retry.BaseDelay > 0, "retry.base_delay is %v: above 0", c.Retry.BaseDelay)
	must(c.Retry.Multiplier >= 1, "retry.multiplier is %v: at least 1", c.Retry.Multiplier)
	must(c.Retry.MaxBackoff >= c.Retry.BaseDelay, "retry.max_backoff is %v: not below base_delay, which is %v", c.Retry.MaxBackoff, c.Retry.BaseDelay)
	must(c.Retry.Jitter == -1 || c.Retry.Jitter > 0 && c.Retry.Jitter <= 1, "retry.jitter is %v: above 0 and up to 1, or -1 for none", c.Retry.Jitter)
	retain := func(key string, d time.Duration) {
		must(d == -1 || d > 0, "retention.%s is %v: above 0, or -1 to keep for ever", key, d)
		must(d <= 0 || d >= c.retried(), "retention.%s is %v: at least %v, which is how long a row can be retried (the delays of outbox.retry and a lease), or -1 to keep for ever;"+
			" raise it, or lower outbox.retry.max_attempts or outbox.retry.max_backoff", key, d, c.retried())
	}
	if !c.Retention.Delete {
		retain("published", c.Retention.Published)
	}
	retain("abandoned", c.Retention.Abandoned)
	must(c.Retention.Every == -1 || c.Retention.Every > 0, "retention.every is %v: above 0, or -1 for never", c.Retention.Every)
	return errors.Join(errs...)
}

// retried is how long a row can be retried, with a member that dies over it.
func (c Config) retried() time.Duration {
	lease := max(c.Lease, 0)
	return min(c.Retry.Horizon(), math.MaxInt64-lease) + lease
}

// Horizon is the longest time from a row's first attempt to its last: the delays
// after all attempts but the last, each with the whole of its jitter. Fields that
// are 0 are not taken for their defaults.
func (p RetryPolicy) Horizon() time.Duration {
	var sum float64
	d := float64(p.BaseDelay)
	for range min(p.MaxAttempts, maxAttempts) - 1 {
		d = min(d, float64(p.MaxBackoff))
		sum += d
		d *= p.Multiplier
	}
	if sum *= 1 + max(p.Jitter, 0); sum >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(sum)
}

// Delay is the wait after an attempt that failed; attempts counts that one. r
// is a random number from [0, 1).
func (p RetryPolicy) Delay(attempts int, r float64) time.Duration {
	d := float64(p.BaseDelay)
	for range attempts - 1 {
		if d *= p.Multiplier; d >= float64(p.MaxBackoff) {
			break
		}
	}
	d = min(d, float64(p.MaxBackoff))
	if p.Jitter > 0 {
		d *= 1 + p.Jitter*(2*r-1)
	}
	return time.Duration(d)
}

// DefaultPartitions is the partition count of a database whose first migration
// names none.
const DefaultPartitions = 64
