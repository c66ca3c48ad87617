package outboxdb_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/outbox"
)

// S4-07, A6, C-01: a claim reads all of a row as it was inserted.
// Conformance: S2-03.
func TestClaim_ReadsWhatWasInserted(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		full, plain := outboxdbtest.Row("k'1"), outboxdbtest.Row("k-2")
		full.Topic, full.CloudEvent, full.CausationID, full.TenantID, full.Traceparent = "t", `{"a":"b"}`, "cause", "tenant", "00-01"
		full.Priority, full.AggregateVersion, full.Payload = -7, 1<<40, []byte{0, 1, 255}
		b.InsertRows(full, plain)
		m := b.Join("one", time.Minute, 100)
		rows := m.ClaimAll()
		require.Len(t, rows, 2)
		for i, want := range []outbox.Row{full, plain} {
			got := rows[i]
			require.True(t, want.OccurredAt.Equal(got.OccurredAt))
			got.OccurredAt = want.OccurredAt
			require.Equal(t, sent(want), got.Row)
			require.EqualValues(t, i+1, got.Seq)
			require.WithinDuration(t, time.Now(), got.CreatedAt, time.Minute)
			require.False(t, got.Waits)
		}
		require.Equal(t, outbox.KeyOf("default", "t", "ordering::order", "k'1"), rows[0].KeyHash)
	})
}

func TestSettle_PublishedRowsLeaveAndAreLogged(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.Insert(outboxdbtest.Numbered("k", 10)...)
		b.Exec("UPDATE outbox_queue SET attempts = 1 WHERE seq <= 2")
		m := b.Join("one", time.Minute, 100)
		rows := m.ClaimAll()
		w := m.Settlement(rows[:6]...)
		w.Retries = 5 // with those of rows that stay in the queue, which are counted there
		require.True(t, m.Settle(w))
		require.False(t, m.Settle(w), "the token is gone")
		require.EqualValues(t, 4, b.Count("SELECT count(*) FROM outbox_queue"))
		require.EqualValues(t, 10, b.Count("SELECT count(*) FROM outbox_messages"))
		require.EqualValues(t, 1, b.Count("SELECT count(*) FROM outbox_log WHERE published = 6 AND retries = 2 AND low = 1 AND high = 6 AND attempts IS NOT NULL AND member = ? AND n = 1", m.ID))

		require.Len(t, m.ClaimAll(), 4)
		require.True(t, m.Settle(m.Settlement()), "handed back")
		require.EqualValues(t, 4, b.Count("SELECT count(*) FROM outbox_queue"))
		require.Zero(t, b.Count("SELECT count(*) FROM outbox_claims"))
		require.EqualValues(t, 1, b.Count("SELECT count(*) FROM outbox_log"))
	})
}

// Retention 0: bodies go with the settle, but for those that a target that is joining
// may need.
func TestSettle_DeletesBodiesUnlessATargetIsJoining(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.Insert(outboxdbtest.Numbered("k", 10)...)
		m := b.Join("one", time.Minute, 100)
		w := m.Settlement(m.ClaimAll()...)
		w.N, w.Delete = 1, true
		b.Exec("INSERT INTO outbox_settings (name, value) VALUES ('backfill:partner', '4')")
		require.True(t, m.Settle(w))
		require.Zero(t, b.Count("SELECT count(*) FROM outbox_queue"))
		require.EqualValues(t, 6, b.Count("SELECT count(*) FROM outbox_messages WHERE seq > 4"))
		require.EqualValues(t, 6, b.Count("SELECT count(*) FROM outbox_messages"))
		require.EqualValues(t, 10, b.Count("SELECT published FROM outbox_log"))
	})
}

// One settlement with everything: each row is where its outcome leads.
func TestSettle_EveryOutcome(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.Insert("a", "fails", "held", "lost", "x", "x", "x", "y", "y", "back")
		m := b.Join("one", time.Minute, 100)
		rows := m.ClaimAll()
		require.Len(t, rows, 10)
		w := m.Settlement(rows[0], rows[5])
		w.Failed = []relay.Failure{
			{RowRef: rows[2].Ref(), Attempts: 5, Class: "transient", Error: "no", Held: true},
			{RowRef: rows[1].Ref(), Attempts: 2, DueIn: time.Hour, Class: "unknown", Error: strings.Repeat("ä", 3000) + "\x00\xff"},
		}
		w.Lost = []relay.RowRef{rows[3].Ref()}
		w.Abandoned = []relay.Abandonment{
			{RowRef: rows[7].Ref(), Class: "crash", Error: "y", Losses: 5, MaybeDelivered: true},
			{RowRef: rows[4].Ref(), Class: "permanent", Error: "x\"{}", Attempts: 1},
		}
		require.True(t, m.Settle(w))
		require.EqualValues(t, 6, b.Count("SELECT count(*) FROM outbox_queue"))
		require.EqualValues(t, 1, b.Count("SELECT count(*) FROM outbox_queue WHERE seq = 2 AND attempts = 2 AND failure = 'unknown' AND length(error) = 2048 AND due_at IS NOT NULL AND NOT held AND failed_at IS NOT NULL"))
		require.EqualValues(t, 1, b.Count("SELECT count(*) FROM outbox_queue WHERE seq = 3 AND attempts = 5 AND held AND due_at IS NULL"))
		require.EqualValues(t, 1, b.Count("SELECT count(*) FROM outbox_queue WHERE seq = 4 AND attempts = 0 AND losses = 1 AND due_at IS NULL"))
		require.EqualValues(t, 1, b.Count("SELECT count(*) FROM outbox_queue WHERE seq = 10 AND attempts = 0 AND losses = 0 AND due_at IS NULL"))
		require.EqualValues(t, 1, b.Count("SELECT count(*) FROM outbox_abandoned WHERE seq = 5 AND class = 'permanent' AND error = 'x\"{}' AND attempts = 1 AND NOT maybe_delivered AND key = ?", rows[4].KeyHash))
		require.EqualValues(t, 1, b.Count("SELECT count(*) FROM outbox_abandoned WHERE seq = 8 AND class = 'crash' AND losses = 5 AND maybe_delivered"))
		require.EqualValues(t, 2, b.Count("SELECT count(*) FROM outbox_abandoned"))
		require.EqualValues(t, 2, b.Count("SELECT published FROM outbox_log"))

		// What is behind a row that leaves undelivered is made due [SKIPNODUE].
		due, next, err := b.Due(t.Context(), m.Lane, m.Parts, relay.DueAt{}, 100)
		require.NoError(t, err)
		require.Zero(t, next)
		require.Len(t, due, 2)
		require.EqualValues(t, 7, due[0].Seq, "6 was published by the same settlement")
		require.EqualValues(t, 9, due[1].Seq)
		require.Equal(t, rows[7].KeyHash, due[1].Key)

		waits := map[int64]bool{}
		for _, r := range m.Look(100) {
			waits[r.Seq] = r.Waits
		}
		require.Equal(t, map[int64]bool{2: true, 3: true, 4: false, 7: false, 9: false, 10: false}, waits)
	})
}

// Without its token a settlement does nothing, whatever it says [NOTOKEN].
func TestSettle_WithoutItsTokenDoesNothing(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.Insert("a", "b", "c", "c", "d")
		m := b.Join("one", time.Minute, 100)
		rows := m.ClaimAll()
		w := m.Settlement(rows[0])
		w.N, w.Delete = 99, true
		w.Failed = []relay.Failure{{RowRef: rows[1].Ref(), Attempts: 1, Class: "unknown", Error: "x"}}
		w.Abandoned = []relay.Abandonment{{RowRef: rows[2].Ref(), Class: "unknown", Error: "x"}}
		w.Lost = []relay.RowRef{rows[4].Ref()}
		require.False(t, m.Settle(w))
		published := m.Settlement(rows...) // it has a statement of its own
		published.N, published.Delete = 99, true
		require.False(t, m.Settle(published))
		require.EqualValues(t, 5, b.Count("SELECT count(*) FROM outbox_queue WHERE failure IS NULL AND due_at IS NULL AND losses = 0"))
		require.EqualValues(t, 5, b.Count("SELECT count(*) FROM outbox_messages"))
		require.Zero(t, b.Count("SELECT count(*) FROM outbox_log"))
		require.Zero(t, b.Count("SELECT count(*) FROM outbox_abandoned"))
		require.EqualValues(t, 1, b.Count("SELECT count(*) FROM outbox_claims"))
	})
}

// O18: what no database will ever take is told from what passes.
func TestSettle_O18_WhatCanNeverWorkIsPermanent(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.Insert("a")
		m := b.Join("one", time.Minute, 100)
		rows := m.ClaimAll()
		w := m.Settlement()
		w.Failed = []relay.Failure{{RowRef: rows[0].Ref(), Attempts: 1, Class: "no class", Error: "x"}}
		_, err := b.Settle(t.Context(), w)
		require.ErrorContains(t, err, "outbox: settle: ")
		require.True(t, dberr.Permanent(err), err)
		require.EqualValues(t, 1, b.Count("SELECT count(*) FROM outbox_claims"), "nothing has happened")

		b.Exec("ALTER TABLE outbox_claims RENAME TO outbox_claims_away")
		_, err = b.Settle(t.Context(), m.Settlement())
		require.Error(t, err)
		require.False(t, dberr.Permanent(err), "an operator can mend it: %v", err)
	})
}

// A claim that wasn't answered is forgotten by the next one.
func TestClaim_ForgetsUnansweredOnes(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.Insert("a", "b")
		m := b.Join("one", time.Minute, 100)
		rows := m.Look(10)
		m.Claim(rows[0])
		q := m.Next(rows...)
		q.Forget, q.Durable = []int64{1, 17}, true
		c, err := b.Claim(t.Context(), q)
		require.NoError(t, err)
		require.Len(t, c.Rows, 2)
		require.EqualValues(t, 2, b.Count("SELECT max(n) FROM outbox_claims"))
		require.EqualValues(t, 1, b.Count("SELECT count(*) FROM outbox_claims"))
	})
}

// What an operator has changed since the look is read again [NOREREAD]: a claim leaves
// out what is gone, and says what waits.
func TestClaim_ReadsAgainWhatTheTrackBelieves(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.Insert("a", "a", "b")
		m := b.Join("one", time.Minute, 100)
		rows := m.Look(10)
		b.Exec("DELETE FROM outbox_queue WHERE seq = 1")
		b.Exec("UPDATE outbox_queue SET held = true WHERE seq = 3")
		claimed := m.Claim(rows...)
		require.Equal(t, []int64{2, 3}, outboxdbtest.Seqs(claimed))
		require.False(t, claimed[0].Waits)
		require.True(t, claimed[1].Waits)
	})
}
