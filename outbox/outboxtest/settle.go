package outboxtest

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/outbox"
)

func settleClears(t *testing.T, b *Bench) {
	b.Insert("a", "b", "c", "d")
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(10)
	w.Settle(c, outbox.Outcome{Seq: c.Rows[0].Seq, Status: outbox.Published},
		outbox.Outcome{Seq: c.Rows[1].Seq, Status: outbox.Failed, Class: "transient", Error: "x", After: time.Hour},
		outbox.Outcome{Seq: c.Rows[2].Seq, Status: outbox.Abandoned, Class: "permanent", Error: "y"},
		outbox.Outcome{Seq: c.Rows[3].Seq, Status: outbox.Pending, Unspent: true})
	require.Equal(t, []outbox.Status{outbox.Published, outbox.Failed, outbox.Abandoned, outbox.Pending}, b.Statuses())
	for _, e := range b.Entries() {
		require.Empty(t, e.LockedBy, e.Status)
		require.Nil(t, e.LockedUntil, e.Status)
		require.Zero(t, e.Fence, e.Status)
		require.Zero(t, e.ClaimID, e.Status)
	}
	e := b.Entries()
	require.NotNil(t, e[0].PublishedAt)
	require.InDelta(t, 168, e[0].ExpiresAt.Sub(*e[0].PublishedAt).Hours(), 0.1)
	require.Equal(t, "transient", e[1].FailureClass)
	require.Nil(t, e[1].ExpiresAt)
	require.Equal(t, "y", e[2].LastError)
	require.NotNil(t, e[2].ExpiresAt)
	require.Nil(t, e[3].ExpiresAt)
}

func settleClearsError(t *testing.T, b *Bench) {
	b.Insert("a")
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(1)
	w.Settle(c, All(c, failed(-time.Second))...)
	require.Equal(t, "no", b.Entries()[0].LastError)
	c = w.Claim(1)
	w.Settle(c, All(c, published())...)
	e := b.Entries()[0]
	require.Empty(t, e.LastError)
	require.Empty(t, e.FailureClass)
	require.Equal(t, 2, e.Attempts)
}

func longError(t *testing.T, b *Bench) {
	b.Insert("a")
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(1)
	o := failed(time.Hour)
	o.Error = "it's \"so\" bad:\n\x00" + strings.Repeat("ü", 5000) + string([]byte{0xff})
	w.Settle(c, All(c, o)...)
	got := []rune(b.Entries()[0].LastError)
	require.Len(t, got, 2048)
	require.Contains(t, string(got), "it's \"so\" bad:\n")
}

func failedDelay(t *testing.T, b *Bench) {
	b.Insert("a")
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(1)
	w.Settle(c, All(c, failed(time.Hour))...)
	e := b.Entries()[0]
	require.InDelta(t, 3600, e.AvailableAt.Sub(*e.LastAttemptAt).Seconds(), 20)
	require.Empty(t, w.Claim(1).Rows)
	b.Exec("UPDATE outbox SET available_at = " + past(b.DB))
	require.Len(t, w.Claim(1).Rows, 1)
}

func staleSettle(t *testing.T, b *Bench) {
	b.Insert("a")
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(1)
	other := c
	other.ID++
	require.Equal(t, 1, w.Settle(other, All(c, published())...))
	require.Equal(t, []outbox.Status{outbox.Processing}, b.Statuses())
	require.Zero(t, w.Settle(c, All(c, published())...))
	require.Equal(t, 1, w.Settle(c, All(c, failed(time.Hour))...), "a settled claim can't be settled again")
	require.Equal(t, []outbox.Status{outbox.Published}, b.Statuses())
}

func missingRows(t *testing.T, b *Bench) {
	b.Insert("a", "b")
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(2)
	b.Exec("DELETE FROM outbox WHERE seq = ?", c.Rows[0].Seq)
	require.Equal(t, 1, w.Settle(c, All(c, published())...))
	require.Equal(t, []outbox.Status{outbox.Published}, b.Statuses())
}

func heldRow(t *testing.T, b *Bench) {
	b.Insert("a", "b")
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(2)
	w.Settle(c, outbox.Outcome{Seq: c.Rows[0].Seq, Status: outbox.Abandoned, Class: "permanent", Error: "x", Hold: true},
		outbox.Outcome{Seq: c.Rows[1].Seq, Status: outbox.Abandoned, Class: "permanent", Error: "x"})
	b.Insert("a", "b")
	require.Equal(t, []string{"b"}, Keys(w.Claim(10)), "a is held, b is skipped")
	require.True(t, b.Entries()[0].Held)
	require.Nil(t, b.Entries()[0].ExpiresAt, "a held row is kept")
}

func deleteOnPublish(t *testing.T, b *Bench) {
	b.Insert("a", "b")
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(2)
	stale, err := b.Settle(t.Context(), outbox.Settlement{
		Claim: c.ID, Target: "default", Retention: outbox.Retention{Delete: true},
		Outcomes: []outbox.Outcome{{Seq: c.Rows[0].Seq, Status: outbox.Published}, {Seq: c.Rows[1].Seq, Status: outbox.Failed, Class: "transient", Error: "x", After: time.Hour}},
	})
	require.NoError(t, err)
	require.Zero(t, stale)
	require.Equal(t, []outbox.Status{outbox.Failed}, b.Statuses())
	s, err := b.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, s["default"].Counts[outbox.Published])
	require.EqualValues(t, 1, s["default"].Counts[outbox.Failed])
}

func takeover(t *testing.T, b *Bench) {
	b.Insert("a", "a", "b")
	dead := b.Worker("dead", Partitions, time.Minute)
	require.Len(t, dead.Claim(2).Rows, 2)
	require.Empty(t, b.Worker("early", Partitions, time.Minute).Leases, "the lease still runs")
	b.Expire()
	heir := b.Worker("heir", Partitions, time.Minute)
	require.Equal(t, []outbox.Status{outbox.Pending, outbox.Pending, outbox.Pending}, b.Statuses())
	c := heir.Claim(10)
	require.Equal(t, []string{"a", "a", "b"}, Keys(c))
	require.Equal(t, []int{2, 2, 1}, []int{c.Rows[0].Attempts, c.Rows[1].Attempts, c.Rows[2].Attempts})
	require.Equal(t, []int{1, 1, 0}, []int{c.Rows[0].Losses, c.Rows[1].Losses, c.Rows[2].Losses})
	// Settled, they have killed nobody: the lost claim is given back.
	heir.Settle(c, All(c, failed(time.Hour))...)
	require.Equal(t, []int{1, 1, 1}, []int{b.Entries()[0].Attempts, b.Entries()[1].Attempts, b.Entries()[2].Attempts})
	require.Zero(t, b.Entries()[0].Losses)
}

func lateSettle(t *testing.T, b *Bench) {
	b.Insert("a", "b")
	slow := b.Worker("slow", Partitions, time.Minute)
	late := slow.Claim(2)
	b.Expire()
	heir := b.Worker("heir", Partitions, time.Minute)
	require.Equal(t, 2, slow.Settle(late, All(late, published())...), "after the takeover, before the next claim")
	require.Equal(t, []outbox.Status{outbox.Pending, outbox.Pending}, b.Statuses())
	c := heir.Claim(1)
	require.Equal(t, 2, slow.Settle(late, All(late, failed(time.Hour))...), "while the heir has one of them")
	heir.Settle(c, All(c, published())...)
	require.Equal(t, 2, slow.Settle(late, All(late, failed(time.Hour))...), "after the heir has published it")
	require.Equal(t, []outbox.Status{outbox.Published, outbox.Pending}, b.Statuses())
}

func fences(t *testing.T, b *Bench) {
	seen := map[int64]bool{}
	for range 3 {
		w := b.Worker("w1", Partitions, time.Minute)
		require.Len(t, w.Leases, Partitions)
		for _, l := range w.Leases {
			require.False(t, seen[l.Fence])
			seen[l.Fence] = true
		}
		b.Expire()
	}
}

func runningLease(t *testing.T, b *Bench) {
	first := b.Worker("w1", 5, time.Minute)
	require.Len(t, first.Leases, 5)
	second := b.Worker("w2", Partitions, time.Minute)
	require.Len(t, second.Leases, Partitions-5)
	require.Empty(t, b.Worker("w3", Partitions, time.Minute).Leases)
}

func renewal(t *testing.T, b *Bench) {
	ctx := t.Context()
	w := b.Worker("w1", 3, time.Minute)
	b.Expire() // ran out, and nobody came
	kept, err := b.Announce(ctx, b.DB, "default", []string{"w1"}, w.Leases, time.Minute)
	require.NoError(t, err)
	require.ElementsMatch(t, w.Leases, kept)
	m, err := b.Membership(ctx, "default")
	require.NoError(t, err)
	require.Equal(t, outbox.Membership{Workers: 1, Free: Partitions - 3}, m)

	b.Expire()
	other := b.Worker("w2", Partitions, time.Minute)
	require.Len(t, other.Leases, Partitions)
	kept, err = b.Announce(ctx, b.DB, "default", []string{"w1"}, w.Leases, time.Minute)
	require.NoError(t, err)
	require.Empty(t, kept, "they are another's now")

	b.Exec("UPDATE outbox_workers SET seen_until = " + past(b.DB))
	_, err = b.Announce(ctx, b.DB, "default", []string{"w2"}, nil, time.Minute)
	require.NoError(t, err)
	m, err = b.Membership(ctx, "default")
	require.NoError(t, err)
	require.Equal(t, 1, m.Workers, "the dead are forgotten")
	require.NoError(t, b.Leave(ctx, "default", []string{"w2"}))
	m, err = b.Membership(ctx, "default")
	require.NoError(t, err)
	require.Zero(t, m.Workers)
}

func release(t *testing.T, b *Bench) {
	w := b.Worker("w1", Partitions, time.Minute)
	require.NoError(t, b.Release(t.Context(), "default", w.Leases[:3]))
	heir := b.Worker("w2", Partitions, time.Minute)
	require.Len(t, heir.Leases, 3)
	require.NoError(t, b.Release(t.Context(), "default", w.Leases), "what isn't its own stays")
	m, err := b.Membership(t.Context(), "default")
	require.NoError(t, err)
	require.Equal(t, Partitions-3, m.Free)
}

func refence(t *testing.T, b *Bench) {
	b.Insert("a")
	w := b.Worker("w1", Partitions, time.Minute)
	lost := w.Claim(1) // as if its answer had never come
	leases, _, err := b.Refence(t.Context(), Owner("w1", time.Minute), false)
	require.NoError(t, err)
	require.Len(t, leases, Partitions)
	require.Empty(t, w.Claim(1).Rows, "the old fences are worth nothing")
	require.Equal(t, 1, w.Settle(lost, All(lost, published())...))
	w.Leases = leases
	c := w.Claim(1)
	require.Len(t, c.Rows, 1)
	require.Equal(t, 1, c.Rows[0].Attempts, "what was never sent costs nothing")
	require.Zero(t, c.Rows[0].Losses)

	_, taken, err := b.Refence(t.Context(), Owner("w1", time.Minute), true)
	require.NoError(t, err)
	require.Equal(t, outbox.Takeover{Pending: 1}, taken)
	require.Equal(t, 1, b.Entries()[0].Losses, "what was called counts as lost")
}
