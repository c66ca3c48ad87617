package outbox_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/outbox/outboxtest"
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

// A44, D4, F-33: the delay lands in the table, in available_at, by the database's
// own clock and to the second, whatever the number of workers or processes; the
// claim keeps to it.
func TestRetry_A44_F_33_DueInTheTable(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		b.Insert("a")
		workers := []outboxtest.Worker{b.Worker("w1", outboxtest.Partitions/2, time.Minute), b.Worker("w2", outboxtest.Partitions/2, time.Minute)}
		p := policy(func(*outbox.RetryPolicy) {})
		for attempt, want := range policies["default without jitter"].delays {
			claimed := false
			for _, w := range workers {
				c := w.Claim(1)
				if len(c.Rows) == 0 {
					continue
				}
				require.False(t, claimed)
				claimed = true
				require.Equal(t, attempt+1, c.Rows[0].Attempts)
				w.Settle(c, outbox.Outcome{Seq: c.Rows[0].Seq, Status: outbox.Failed, Class: "transient", Error: "no", After: p.Delay(c.Rows[0].Attempts, 0)})
			}
			require.True(t, claimed, "attempt %d", attempt+1)
			e := b.Entries()[0]
			require.InDelta(t, want, e.AvailableAt.Sub(*e.LastAttemptAt).Seconds(), 1, "after attempt %d", attempt+1)
			for _, w := range workers {
				require.Empty(t, w.Claim(1).Rows, "a second early")
			}
			// Time passes, up to the moment.
			b.Exec("UPDATE outbox SET available_at = last_attempt_at")
			for _, w := range workers {
				*w.Flights = outboxtest.Flights{}
			}
		}
	})
}

// F-16: times are instants. In a zone with daylight saving, of the process and of
// the session, a delay is as long as it says, also over the hour that comes twice,
// and two events in that hour keep their order and their distance.
func TestRetry_F_16_ZonesAndDaylightSaving(t *testing.T) {
	zone, err := time.LoadLocation("America/New_York")
	require.NoError(t, err)
	local := time.Local
	time.Local = zone
	t.Cleanup(func() { time.Local = local })
	t.Setenv("PGTZ", zone.String())
	inTurn(t, func(t *testing.T, open func() *outboxtest.Bench) {
		b := open()
		first := time.Date(2026, 11, 1, 5, 30, 0, 0, time.UTC) // 01:30, and one hour later again
		rows := []outbox.Row{outboxtest.Row("a"), outboxtest.Row("b")}
		rows[0].OccurredAt, rows[1].OccurredAt = first.In(zone), first.Add(time.Hour).In(zone)
		b.InsertRows(rows...)
		w := b.Worker("w1", outboxtest.Partitions, time.Minute)
		c := w.Claim(2)
		w.Settle(c, outboxtest.All(c, outbox.Outcome{Status: outbox.Failed, Class: "transient", Error: "no", After: 24 * 365 * time.Hour})...)
		e := b.Entries()
		require.Equal(t, first, e[0].OccurredAt)
		require.Equal(t, first.Add(time.Hour), e[1].OccurredAt)
		require.InDelta(t, (24 * 365 * time.Hour).Seconds(), e[0].AvailableAt.Sub(*e[0].LastAttemptAt).Seconds(), 1)
		require.Less(t, time.Since(*e[0].LastAttemptAt).Abs(), time.Minute, "not off by the zone")

		if b.DB.Dialect().Name() == dialect.PG {
			var session string
			require.NoError(t, b.DB.NewRaw("SHOW timezone").Scan(t.Context(), &session))
			require.Equal(t, zone.String(), session)
		}
		at := strings.NewReplacer("clock_timestamp()", "timestamptz '2026-11-01 05:30:00Z'", "'now'", "'2026-11-01 05:30:00'")
		from, to := at.Replace(dbtime.Now(b.DB.Dialect())), at.Replace(dbtime.In(b.DB.Dialect(), 24*time.Hour))
		var hours float64
		require.NoError(t, b.DB.NewRaw("SELECT "+dbtime.Seconds(b.DB.Dialect(), from, to)+" / 3600").Scan(t.Context(), &hours))
		require.InDelta(t, 24, hours, 0.001)
	})
}

// A45, A47, A48, D3, S3-17: a row gets max_attempts tries, be it one, three or
// ten; then it is abandoned with the broker's words, isn't tried any more by
// itself, and stays for an operator, who can put it back.
func TestRetry_A47_D3_MaxAttemptsIsHonoured(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		for _, attempts := range []int{1, 3, 10} {
			b.Exec("DELETE FROM outbox")
			row := b.Insert("a")[0]
			m := memory.New(memory.Config{})
			m.FailWhere(func(broker.Message) error { return errors.New("no room") })
			cfg := quick()
			cfg.Retry = outbox.RetryPolicy{MaxAttempts: attempts, BaseDelay: time.Millisecond, MaxBackoff: 5 * time.Millisecond, Jitter: -1}
			p := processor(t, b, cfg, lane(m))
			statuses(t, b, map[outbox.Status]int{outbox.Abandoned: 1})
			require.Len(t, m.Calls(), attempts)
			e := b.Entries()[0]
			require.Equal(t, attempts, e.Attempts)
			require.Equal(t, "no room", e.LastError)
			require.Equal(t, "transient", e.FailureClass)
			require.NotNil(t, e.ExpiresAt)

			// The row behind it is published, so the processor works, and it is not
			// tried again.
			m.FailWhere(nil)
			b.Insert("a")
			statuses(t, b, map[outbox.Status]int{outbox.Abandoned: 1, outbox.Published: 1})
			require.Len(t, m.Messages(topic), 1)
			n, err := b.Purge(t.Context(), outbox.Retention{Batch: 100})
			require.NoError(t, err)
			require.Zero(t, n, "it stays until it has expired")

			b.Exec("UPDATE outbox SET status = 'pending', attempts = 0, finished_at = NULL, expires_at = NULL, available_at = created_at WHERE status = 'abandoned'")
			b.Exec("UPDATE outbox_partitions SET changes = changes + 1") // as whoever does so has to say
			statuses(t, b, map[outbox.Status]int{outbox.Published: 2})
			require.Equal(t, row.MessageID, m.Messages(topic)[1].ID)
			require.NoError(t, p.Stop(t.Context()))
		}
	})
}

// F-32: while the broker is down nobody pays an attempt, so that an outage of any
// length leaves every row all of its max_attempts.
func TestRetry_F_32_AnOutageCostsNoAttempt(t *testing.T) {
	t.Parallel()
	b := outboxtest.Open(t, openSQLite(t))
	b.Insert("a", "b")
	m := memory.New(memory.Config{})
	m.SetOutage(true)
	cfg := quick()
	cfg.Retry.MaxAttempts = 1
	processor(t, b, cfg, lane(m))
	require.Eventually(t, func() bool { return len(m.Calls()) >= 3 }, 20*time.Second, 5*time.Millisecond)
	m.SetOutage(false)
	statuses(t, b, map[outbox.Status]int{outbox.Published: 2})
	for _, e := range b.Entries() {
		require.Equal(t, 1, e.Attempts)
	}
}
