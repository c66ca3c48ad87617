package outboxdb_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbtx"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/outbox"
)

// past is an hour ago by the database's clock.
func past(b *outboxdbtest.Bench) string {
	if b.SQLite() {
		return "strftime('%Y-%m-%dT%H:%M:%fZ','now','-1 hours')"
	}
	return "clock_timestamp() - interval '1 hour'"
}

// publishEach publishes what is queued, a claim for each row.
func publishEach(m *outboxdbtest.Member) {
	for _, r := range m.Look(100_000) {
		m.Settle(m.Settlement(m.Claim(r)...))
	}
}

func purge(t *testing.T, b *outboxdbtest.Bench, r outbox.Retention) outbox.Purged {
	t.Helper()
	p, err := b.Purge(t.Context(), r)
	require.NoError(t, err)
	return p
}

// O10: what is old goes, whatever is before it in the log or in the order of seq;
// nothing else does, and what was published stays counted.
// Conformance: O10, S2-25.
func TestPurgeO10_OneYoungRowStopsNothing(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		m := b.Join("host-1-w1", time.Minute, outboxdbtest.Partitions)
		b.Insert("a", "b", "c", "d")
		publishEach(m)
		b.Insert("abandoned", "abandoned", "held", "pending", "failed")
		settleEach(m, m.ClaimAll())
		b.Exec("UPDATE outbox_log SET at = " + past(b) + " WHERE id > 1") // the first is young
		b.Exec("UPDATE outbox_abandoned SET at = " + past(b) + " WHERE seq = 6")
		keep := outbox.Retention{Published: 30 * time.Minute, Abandoned: 30 * time.Minute}

		require.Equal(t, outbox.Purged{Published: 3, Abandoned: 1}, purge(t, b, keep))
		require.Equal(t, outbox.Purged{}, purge(t, b, keep))
		require.Equal(t, outbox.Purged{}, purge(t, b, outbox.Retention{Published: -1, Abandoned: -1}), "for ever")
		left := statuses(t, b)
		require.Len(t, left, 5)
		require.Equal(t, outbox.Abandoned, left[5])
		require.True(t, mustFind(t, b, 7).Held)
		stats, err := b.Stats(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 4, stats["default"].Counts[outbox.Published])
		found, err := b.Contradictions(t.Context())
		require.NoError(t, err)
		require.Empty(t, found)
	})
}

// The database's clock was ahead for a while, and was put right: what was published then stays
// until its time comes, and what was published since goes when it is old.
func TestPurgeO10_ATimeInWhichTheClockWasAheadStopsNothing(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		none := "'{}'"
		if b.SQLite() {
			none = "'[]'"
		}
		b.Exec("WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)" +
			" INSERT INTO outbox_log (lane, member, n, published, low, high, seqs, at) SELECT 1, 1, i, 0, 0, 0, " + none + ", '2999-01-02T03:04:05.678Z' FROM n")
		m := b.Join("host-1-w1", time.Minute, outboxdbtest.Partitions)
		b.Insert("a", "b")
		publishEach(m)
		b.Exec("UPDATE outbox_log SET at = " + past(b) + " WHERE published > 0")
		require.Equal(t, outbox.Purged{Published: 2}, purge(t, b, outbox.Retention{Published: 30 * time.Minute, Abandoned: -1}))
		require.EqualValues(t, 1000, b.Count("SELECT count(*) FROM outbox_log"))
	})
}

// O9: what was published is only inserted and folded, and each is counted once, be it
// in the log, folded or removed.
func TestPublishedCountsO9_AreFolded(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		m := b.Join("host-1-w1", time.Minute, outboxdbtest.Partitions)
		b.Insert("a", "b", "c", "d", "e")
		publishEach(m)
		b.Exec("UPDATE outbox_log SET at = " + past(b) + " WHERE id <= 3")
		published := func() int64 {
			stats, err := b.Stats(t.Context())
			require.NoError(t, err)
			return stats["default"].Counts[outbox.Published]
		}
		require.EqualValues(t, 5, published())
		require.Zero(t, b.Count("SELECT count(*) FROM outbox_counts"))
		require.NoError(t, b.Fold(t.Context()))
		require.EqualValues(t, 3, b.Count("SELECT published FROM outbox_counts"), "what may still be preceded by others is left")
		require.EqualValues(t, 5, published())
		c, err := b.CleanUp(t.Context(), outbox.CleanUp{Actor: "ada", OlderThan: time.Nanosecond})
		require.NoError(t, err)
		require.Equal(t, outbox.Purged{Published: 5}, c.Purged)
		require.EqualValues(t, 5, published())
		require.NoError(t, b.Fold(t.Context()))
		require.EqualValues(t, 5, published())
		require.Zero(t, b.Count("SELECT count(*) FROM outbox_messages"))
	})
}

// An operator's clean-up goes by what is asked, or by when rows expire; a dry run
// counts the same, and who asked is on record.
func TestCleanUpIsOnRecord(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		m := b.Join("host-1-w1", time.Minute, outboxdbtest.Partitions)
		b.Insert("abandoned", "published")
		settleEach(m, m.ClaimAll())
		require.NoError(t, b.WriteRetention(t.Context(), outbox.Config{Retention: outbox.Retention{Published: 30 * time.Minute}}))
		require.WithinDuration(t, time.Now().Add(30*time.Minute), *mustFind(t, b, 2).ExpiresAt, time.Minute)
		require.WithinDuration(t, time.Now().Add(720*time.Hour), *mustFind(t, b, 1).ExpiresAt, time.Minute)
		clean := func(c outbox.CleanUp) outbox.CleanedUp {
			c.Actor = "ada"
			done, err := b.CleanUp(t.Context(), c)
			require.NoError(t, err)
			return done
		}
		require.Equal(t, outbox.CleanedUp{}, clean(outbox.CleanUp{}), "nothing has expired")
		b.Exec("UPDATE outbox_log SET at = " + past(b))
		require.Equal(t, outbox.Purged{Published: 1}, clean(outbox.CleanUp{DryRun: true}).Purged)
		require.Len(t, statuses(t, b), 2)
		done := clean(outbox.CleanUp{})
		require.Equal(t, outbox.Purged{Published: 1}, done.Purged)
		require.NotZero(t, done.Action)
		require.Equal(t, outbox.Purged{Abandoned: 1}, clean(outbox.CleanUp{OlderThan: time.Nanosecond, Statuses: []outbox.Status{outbox.Abandoned}}).Purged)
		actions, err := b.Actions(t.Context(), 10)
		require.NoError(t, err)
		require.Len(t, actions, 2)
		require.JSONEq(t, `{"older_than": "1ns", "statuses": ["abandoned"]}`, string(actions[0].Filter))
		_, err = b.CleanUp(t.Context(), outbox.CleanUp{})
		require.ErrorContains(t, err, "Actor is missing")
	})
}

// What was published again is one row, though the log has it twice: a dry run counts what is removed then.
func TestCleanUp_CountsWhatWasPublishedAgainOnce(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		m := b.Join("host-1-w1", time.Minute, outboxdbtest.Partitions)
		rows := b.Insert("a", "b", "c")
		publishEach(m)
		require.NoError(t, dbtx.Run(t.Context(), b.DB, func(tx bun.Tx) error {
			of, err := b.Republish(t.Context(), tx, "ordering", rows[:2])
			require.EqualValues(t, 2, of.Rows)
			return err
		}))
		publishEach(m)
		require.EqualValues(t, 5, b.Count("SELECT sum(published) FROM outbox_log"))
		for _, dry := range []bool{true, false} {
			var told outbox.Purged
			done, err := b.CleanUp(t.Context(), outbox.CleanUp{Actor: "ada", OlderThan: time.Nanosecond, DryRun: dry, Progress: func(so outbox.Purged) { told = so }})
			require.NoError(t, err)
			require.Equal(t, outbox.Purged{Published: 3}, done.Purged, "dry run: %t", dry)
			require.Equal(t, done.Purged, told)
		}
		require.Zero(t, b.Count("SELECT count(*) FROM outbox_log"))
	})
}

// Who is stopped while it counts has removed nothing, and doesn't say that it has.
func TestCleanUp_SaysWhatItHasRemovedWhenItIsStopped(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		none := "'{}'"
		if b.SQLite() {
			none = "'[]'"
		}
		m := b.Join("host-1-w1", time.Minute, outboxdbtest.Partitions)
		b.Insert("a")
		publishEach(m)
		// More than a step removes.
		b.Exec("INSERT INTO outbox_log (lane, member, n, published, low, high, seqs, at) SELECT lane, member, n + 1, 1000, low, high, " + none + ", at FROM outbox_log")
		stopped := func(dry bool, says string) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			_, err := b.CleanUp(ctx, outbox.CleanUp{Actor: "ada", OlderThan: time.Nanosecond, DryRun: dry, Progress: func(outbox.Purged) { cancel() }})
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorContains(t, err, says)
		}
		stopped(true, "it ended while it counted, and has removed nothing")
		require.EqualValues(t, 1, b.Count("SELECT count(*) FROM outbox_messages"))
		stopped(false, "it ended early, after 1 published and 0 abandoned rows; run it again")
	})
}

// What a target that is joining may need stays until it was copied.
func TestPurgeLeavesWhatAJoiningTargetNeeds(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		m := b.Join("host-1-w1", time.Minute, outboxdbtest.Partitions)
		b.Insert("a", "b", "c")
		publishEach(m)
		b.Exec("UPDATE outbox_log SET at = " + past(b))
		b.Exec("INSERT INTO outbox_settings (name, value) VALUES ('backfill:ordering:partner', '1')")
		keep := outbox.Retention{Published: 30 * time.Minute}
		require.Equal(t, outbox.Purged{Published: 1}, purge(t, b, keep))
		b.Exec("DELETE FROM outbox_settings WHERE name = 'backfill:ordering:partner'")
		require.Equal(t, outbox.Purged{Published: 2}, purge(t, b, keep))
	})
}
