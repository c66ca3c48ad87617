package relay_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/outbox"
)

// failures are those of all rows of a member's last claim.
func failures(rows []relay.Claimed, in time.Duration) (all []relay.Failure) {
	for _, row := range rows {
		all = append(all, relay.Failure{RowRef: row.Ref(), Attempts: row.Attempts + 1, DueIn: in, Class: "transient", Error: "no"})
	}
	return all
}

// A44, D4, F-33: the delay lands in the table, in due_at, by the database's own clock and
// to the second, whatever the number of processes; looks and claims keep to it.
// Conformance: U-07.
func TestRetry_A44_F_33_DueInTheTable(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.Insert("a")
		members := []*outboxdbtest.Member{b.Join("w1", time.Minute, outboxdbtest.Partitions/2), b.Join("w2", time.Minute, outboxdbtest.Partitions/2)}
		p := outbox.Config{}.WithDefaults().Retry
		p.Jitter = -1
		for attempt, want := range []float64{60, 120, 240, 480, 960, 1920, 3600, 3600, 3600} {
			claimed := false
			for _, w := range members {
				seen := w.Look(10)
				if len(seen) == 0 {
					continue
				}
				require.False(t, claimed)
				claimed = true
				require.False(t, seen[0].Waits)
				rows := w.Claim(seen...)
				require.Equal(t, attempt, rows[0].Attempts)
				settlement := w.Settlement()
				settlement.Failed = failures(rows, p.Delay(attempt+1, 0))
				require.True(t, w.Settle(settlement))

				require.True(t, w.Look(10)[0].Waits, "a second early")
				require.True(t, w.Claim(seen...)[0].Waits)
				require.True(t, w.Settle(w.Settlement()), "handed back")
			}
			require.True(t, claimed, "attempt %d", attempt+1)
			e := entries(t, b)[0]
			require.InDelta(t, want, e.AvailableAt.Sub(*e.LastAttemptAt).Seconds(), 1, "after attempt %d", attempt+1)
			require.Less(t, time.Since(*e.LastAttemptAt).Abs(), time.Minute)
			b.Exec("UPDATE outbox_queue SET due_at = failed_at") // time passes, up to the moment
		}
	})
}

// zoned is set where the process has another zone.
const zoned = "WAYBILL_ZONED"

// F-16: times are instants. In a zone with daylight saving, of the process and of
// the session, a delay is as long as it says, also over the hour that comes twice,
// and two events in that hour keep their order and their distance.
func TestRetry_F_16_ZonesAndDaylightSaving(t *testing.T) {
	zone, err := time.LoadLocation("America/New_York")
	require.NoError(t, err)
	if os.Getenv(zoned) == "" { // in a process of its own: goroutines of other tests read the zone
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRetry_F_16_ZonesAndDaylightSaving$", "-test.v") //nolint:gosec // itself
		cmd.Env = append(os.Environ(), zoned+"=1", "PGTZ="+zone.String())
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		for _, database := range []string{"SQLite", "PostgreSQL"} {
			require.Contains(t, string(out), "--- PASS: TestRetry_F_16_ZonesAndDaylightSaving/"+database)
		}
		return
	}
	time.Local = zone
	for name, open := range map[string]func(testing.TB) outboxdbtest.Database{"SQLite": outboxdbtest.SQLite, "PostgreSQL": outboxdbtest.PostgreSQL} {
		t.Run(name, func(t *testing.T) {
			b := outboxdbtest.Open(t, open(t))
			first := time.Date(2026, 11, 1, 5, 30, 0, 0, time.UTC) // 01:30, and one hour later again
			rows := []outbox.Row{outboxdbtest.Row("a"), outboxdbtest.Row("b")}
			rows[0].OccurredAt, rows[1].OccurredAt = first.In(zone), first.Add(time.Hour).In(zone)
			b.InsertRows(rows...)
			w := b.Join("w1", time.Minute, outboxdbtest.Partitions)
			claimed := w.ClaimAll()
			settlement := w.Settlement()
			settlement.Failed = failures(claimed, 24*365*time.Hour)
			require.True(t, w.Settle(settlement))
			e := entries(t, b)
			require.Equal(t, first, e[0].OccurredAt.UTC())
			require.Equal(t, first.Add(time.Hour), e[1].OccurredAt.UTC())
			require.InDelta(t, (24 * 365 * time.Hour).Seconds(), e[0].AvailableAt.Sub(*e[0].LastAttemptAt).Seconds(), 1)
			require.Less(t, time.Since(*e[0].LastAttemptAt).Abs(), time.Minute, "not off by the zone")

			if !b.SQLite() {
				var session string
				require.NoError(t, b.DB.NewRaw("SHOW timezone").Scan(t.Context(), &session))
				require.Equal(t, zone.String(), session)
			}
			at := strings.NewReplacer("clock_timestamp()", "timestamptz '2026-11-01 05:30:00Z'", "'now'", "'2026-11-01 05:30:00'")
			from, until := at.Replace(dbtime.Now(b.DB.Dialect())), at.Replace(dbtime.In(b.DB.Dialect(), 24*time.Hour))
			var hours float64
			require.NoError(t, b.DB.NewRaw("SELECT "+dbtime.Seconds(b.DB.Dialect(), from, until)+" / 3600").Scan(t.Context(), &hours))
			require.InDelta(t, 24, hours, 0.001)
		})
	}
}

// A45, A47, A48, D3, S3-17: a row gets max_attempts tries, be it one, three or
// ten; then it is abandoned with the broker's words, isn't tried any more by
// itself, and stays for an operator, who can put it back.
// Conformance: S2-21, S3-17.
func TestRetry_A47_D3_MaxAttemptsIsHonoured(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		for _, attempts := range []int{1, 3, 10} {
			for _, table := range []string{"outbox_messages", "outbox_log"} {
				b.Exec("DELETE FROM " + table)
			}
			row := b.Insert("a")[0]
			m := memory.New(memory.Config{})
			m.FailWhere(func(broker.Message) error { return refuse("no room") })
			cfg := quick()
			cfg.Retry = outbox.RetryPolicy{MaxAttempts: attempts, BaseDelay: time.Millisecond, MaxBackoff: 5 * time.Millisecond, Jitter: -1}
			p := processor(t, b, cfg, to(m))
			statuses(t, b, map[outbox.Status]int{outbox.Abandoned: 1})
			require.Len(t, m.Calls(), attempts)
			e := entries(t, b)[0]
			require.Equal(t, attempts, e.Attempts)
			require.Equal(t, "no room", e.LastError)
			require.Equal(t, "transient", e.FailureClass)
			eventually(t, func() bool { return entries(t, b)[0].ExpiresAt != nil }, "the retention is noted, by which it is known until when the row stays")

			// The row behind it is published, so the relay works, and it is not tried again.
			m.FailWhere(nil)
			b.Insert("a")
			statuses(t, b, map[outbox.Status]int{outbox.Abandoned: 1, outbox.Published: 1})
			require.Len(t, m.Messages(orders), 1)
			n, err := b.Purge(t.Context(), outbox.Config{}.WithDefaults().Retention)
			require.NoError(t, err)
			require.Zero(t, n, "it stays until it has expired")

			require.NoError(t, change(t.Context(), b, outbox.VerbRetry, e.Seq))
			statuses(t, b, map[outbox.Status]int{outbox.Published: 2})
			require.Equal(t, row.MessageID, m.Messages(orders)[1].ID)
			require.NoError(t, p.Stop(t.Context()))
		}
	})
}

// F-32: while the broker is down nobody pays an attempt, so that an outage of any
// length leaves every row all of its max_attempts.
func TestRetry_F_32_AnOutageCostsNoAttempt(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.Insert("a", "b")
		m := memory.New(memory.Config{})
		m.SetOutage(true)
		cfg := quick()
		cfg.Retry.MaxAttempts = 1
		processor(t, b, cfg, to(m))
		eventually(t, func() bool { return len(m.Calls()) >= 3 }, "it is tried")
		m.SetOutage(false)
		statuses(t, b, map[outbox.Status]int{outbox.Published: 2})
		for _, e := range entries(t, b) {
			require.Equal(t, 1, e.Attempts)
		}
	})
}
