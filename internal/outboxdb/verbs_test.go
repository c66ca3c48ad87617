package outboxdb_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/outbox"
)

// change is a change by somebody.
func change(t *testing.T, b *outboxdbtest.Bench, f outbox.Filter, c outbox.Change) outbox.ChangeResult {
	t.Helper()
	c.Actor = "ada"
	r, err := b.Change(t.Context(), f, c)
	require.NoError(t, err)
	return r
}

func statuses(t *testing.T, b *outboxdbtest.Bench) map[int64]outbox.Status {
	t.Helper()
	found, err := b.Find(t.Context(), outbox.Filter{})
	require.NoError(t, err)
	all := map[int64]outbox.Status{}
	for _, e := range found {
		all[e.Seq] = e.Status
	}
	return all
}

func row(c relay.Claimed) relay.RowRef { return c.Ref() }

// settleEach settles one claim with rows of every outcome, by key.
func settleEach(m *outboxdbtest.Member, claimed []relay.Claimed) {
	w := m.Settlement()
	for _, c := range claimed {
		switch c.PartitionKey {
		case "published":
			w.Published = append(w.Published, row(c))
		case "failed":
			w.Failed = append(w.Failed, relay.Failure{RowRef: row(c), Attempts: 1, DueIn: time.Hour, Class: "transient", Error: "busy"})
		case "held":
			w.Failed = append(w.Failed, relay.Failure{RowRef: row(c), Attempts: 5, Class: "unknown", Error: "no answer", Held: true})
		case "abandoned":
			w.Abandoned = append(w.Abandoned, relay.Abandonment{RowRef: row(c), Class: "permanent", Error: "too large", Attempts: 1})
		}
	}
	m.Settle(w)
}

// everyState makes rows 1 to 4 published, failed, held and abandoned, 5 is in hand,
// 6 and 7 wait behind the held one.
func everyState(b *outboxdbtest.Bench) (m *outboxdbtest.Member, inHand []relay.Claimed) {
	m = b.Join("host-1-w1", time.Minute, outboxdbtest.Partitions)
	b.Insert("published", "failed", "held", "abandoned")
	settleEach(m, m.ClaimAll())
	b.Insert("processing")
	for _, r := range m.Look(100) {
		if r.Seq == 5 {
			inHand = m.Claim(r)
		}
	}
	b.Insert("held", "held")
	return m, inHand
}

// A row is found in each state, whatever else there is, and people see who has it.
func TestPeopleFindRowsInEveryState(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		_, inHand := everyState(b)
		require.Len(t, inHand, 1)
		require.Equal(t, map[int64]outbox.Status{
			1: outbox.Published, 2: outbox.Failed, 3: outbox.Abandoned, 4: outbox.Abandoned, 5: outbox.Processing, 6: outbox.Pending, 7: outbox.Pending,
		}, statuses(t, b))
		for want, f := range map[int64]outbox.Filter{
			1: {Statuses: []outbox.Status{outbox.Published}},
			2: {Statuses: []outbox.Status{outbox.Failed}, Error: "bus", FailureClass: "transient"},
			3: {Held: true},
			4: {Statuses: []outbox.Status{outbox.Abandoned}, PartitionKey: "abandoned"},
			5: {Statuses: []outbox.Status{outbox.Processing}, Target: "default"},
			6: {Statuses: []outbox.Status{outbox.Pending}, Limit: 1},
			7: {Statuses: []outbox.Status{outbox.Pending, outbox.Abandoned}, After: 6},
		} {
			found, err := b.Find(t.Context(), f)
			require.NoError(t, err)
			require.Len(t, found, 1, "%+v", f)
			require.Equal(t, want, found[0].Seq)
		}
		processing := mustFind(t, b, 5)
		require.Equal(t, "host-1-w1", processing.LockedBy)
		require.NotNil(t, processing.LockedUntil)
		require.NotZero(t, processing.ClaimID)
		require.NotNil(t, mustFind(t, b, 1).PublishedAt)
		require.Equal(t, 1, mustFind(t, b, 1).Attempts)

		b.Expire()
		for want, f := range map[int64]outbox.Filter{5: {Stale: true}} {
			found, err := b.Find(t.Context(), f)
			require.NoError(t, err)
			require.Len(t, found, 1)
			require.Equal(t, want, found[0].Seq)
		}
		found, err := b.Contradictions(t.Context())
		require.NoError(t, err)
		require.Empty(t, found)
	})
}

// The numbers that signals and people see are those of the rows.
func TestPeopleSeeStatsOwnersAndWhatWaits(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		everyState(b)
		stats, err := b.Stats(t.Context())
		require.NoError(t, err)
		s := stats["default"]
		require.Equal(t, map[outbox.Status]int64{outbox.Pending: 2, outbox.Processing: 1, outbox.Published: 1, outbox.Failed: 1, outbox.Abandoned: 2}, s.Counts)
		require.Equal(t, []string{"host-1-w1"}, s.LeaseOwners)
		require.NotNil(t, s.OldestPending)
		require.NotNil(t, s.LastError)
		require.EqualValues(t, 1+1+5+1, s.Attempts)
		require.EqualValues(t, 4, s.Retries)

		held, err := b.Held(t.Context())
		require.NoError(t, err)
		require.Equal(t, map[string]outbox.Held{"default": {Keys: 1, Behind: 2}}, held)

		owners, err := b.Owners(t.Context())
		require.NoError(t, err)
		require.Len(t, owners, outboxdbtest.Partitions)
		var unfinished, heldRows int64
		for _, o := range owners {
			require.True(t, o.Live)
			require.Equal(t, "host-1-w1", *o.Owner)
			unfinished, heldRows = unfinished+o.Unfinished, heldRows+o.Held
		}
		require.EqualValues(t, 5, unfinished)
		require.EqualValues(t, 1, heldRows)

		m, err := b.Message(t.Context(), mustFind(t, b, 7).MessageID)
		require.NoError(t, err)
		require.EqualValues(t, 2, m.Rows[0].Before)
		require.EqualValues(t, 3, m.Rows[0].Head.Seq)
		require.Equal(t, "host-1-w1", m.Rows[0].Owner)
		_, err = b.Message(t.Context(), outboxdbtest.Row("x").MessageID)
		require.ErrorIs(t, err, outbox.ErrNoMessage)
	})
}

// Each verb changes what its status allows, and nothing else; a dry run says the same.
func TestVerbsChangeWhatTheirStatusAllows(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		everyState(b)
		all := outbox.Filter{Target: "default"}
		want := outbox.ChangeResult{Changed: 3, OutOfOrder: 1, Refused: map[outbox.Status]int64{outbox.Processing: 1, outbox.Pending: 2}, Missing: []int64{}, UpTo: 7}
		r, err := b.Change(t.Context(), all, outbox.Change{Verb: outbox.VerbRetry, DryRun: true})
		require.NoError(t, err)
		require.Equal(t, want, r)
		require.Equal(t, outbox.Failed, mustFind(t, b, 2).Status)

		r = change(t, b, outbox.Filter{Held: true}, outbox.Change{Verb: outbox.VerbSkip})
		require.EqualValues(t, 1, r.Changed)
		require.False(t, mustFind(t, b, 3).Held)
		require.EqualValues(t, 1, b.Count("SELECT count(*) FROM outbox_queue WHERE seq = 6 AND due_at IS NOT NULL"), "the row behind it is due")
		require.EqualValues(t, 0, b.Count("SELECT count(*) FROM outbox_queue WHERE seq = 7 AND due_at IS NOT NULL"))

		r = change(t, b, outbox.Filter{Seqs: []int64{1, 2, 5, 999}}, outbox.Change{Verb: outbox.VerbAbandon})
		require.Equal(t, outbox.ChangeResult{Changed: 1, Refused: map[outbox.Status]int64{outbox.Published: 1, outbox.Processing: 1}, Missing: []int64{999}, UpTo: r.UpTo, Action: 2}, r)
		require.Equal(t, "busy", mustFind(t, b, 2).LastError)

		r = change(t, b, outbox.Filter{Statuses: []outbox.Status{outbox.Abandoned}}, outbox.Change{Verb: outbox.VerbRetry, Rate: 0.001})
		require.EqualValues(t, 3, r.Changed)
		require.EqualValues(t, 3, r.OutOfOrder)
		for i, seq := range []int64{2, 3, 4} {
			e := mustFind(t, b, seq)
			require.Equal(t, outbox.Pending, e.Status, "at its old place")
			require.Zero(t, e.Attempts)
			require.WithinDuration(t, time.Now().Add(time.Duration(i)*1000*time.Second), e.AvailableAt, time.Minute)
		}
		require.Equal(t, outbox.KeyOf("default", "ordering.order", "ordering::order", "held"), b.Count("SELECT key FROM outbox_queue WHERE seq = 3"))
		found, err := b.Contradictions(t.Context())
		require.NoError(t, err)
		require.Empty(t, found)
		actions, err := b.Actions(t.Context(), 10)
		require.NoError(t, err)
		require.Len(t, actions, 3)
		require.JSONEq(t, `{"statuses":["abandoned"],"rate":0.001}`, string(actions[0].Filter))
	})
}

// T1: no verb changes what is in hand. A row that an operator puts back before one of
// its key that a call has is due, and the call's row is settled as if nothing had been.
func TestVerbsT1_LeaveWhatIsInHand(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		m := b.Join("host-1-w1", time.Minute, outboxdbtest.Partitions)
		b.Insert("abandoned")
		settleEach(m, m.ClaimAll())
		b.Insert("abandoned")
		inHand := m.ClaimAll()
		require.Equal(t, []int64{2}, outboxdbtest.Seqs(inHand))
		w := m.Settlement(inHand...)

		for _, verb := range []outbox.Verb{outbox.VerbAbandon, outbox.VerbRetry, outbox.VerbSkip} {
			r := change(t, b, outbox.Filter{Seqs: []int64{2}}, outbox.Change{Verb: verb})
			require.Zero(t, r.Changed)
			require.EqualValues(t, 1, r.Refused[outbox.Processing])
		}
		r := change(t, b, outbox.Filter{Seqs: []int64{1}}, outbox.Change{Verb: outbox.VerbRetry})
		require.EqualValues(t, 1, r.Changed)
		require.Equal(t, map[int64]outbox.Status{1: outbox.Pending, 2: outbox.Processing}, statuses(t, b))
		require.EqualValues(t, 1, b.Count("SELECT count(*) FROM outbox_claims"))
		due, _, err := b.Due(t.Context(), m.Lane, m.Parts, relay.DueAt{}, 10)
		require.NoError(t, err)
		require.Len(t, due, 1)
		require.EqualValues(t, 1, due[0].Seq)

		require.True(t, m.Settle(w))
		require.Equal(t, map[int64]outbox.Status{1: outbox.Pending, 2: outbox.Published}, statuses(t, b))
	})
}
