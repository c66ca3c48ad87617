package outboxtest

import (
	"fmt"
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

// One of four outcomes is none that the database knows: nothing of them is
// applied, and the write-back can be made again.
func settleAllOrNone(t *testing.T, b *Bench) {
	b.Insert("a", "b", "c", "d")
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(10)
	before := b.Entries()
	outcomes := []outbox.Outcome{
		{Seq: c.Rows[0].Seq, Status: outbox.Published},
		{Seq: c.Rows[1].Seq, Status: outbox.Failed, Class: "transient", Error: "x", After: time.Hour},
		{Seq: c.Rows[2].Seq, Status: outbox.Pending, Unspent: true},
		{Seq: c.Rows[3].Seq, Status: outbox.Failed, Class: "no class", Error: "x", After: time.Hour},
	}
	for _, r := range []outbox.Retention{{Published: time.Hour}, {Delete: true}} {
		_, err := b.Settle(t.Context(), outbox.Settlement{Claim: c.ID, Target: "default", Outcomes: outcomes, Retention: r})
		require.Error(t, err)
		require.Equal(t, before, b.Entries(), "all are in hand as before")
	}
	outcomes[3].Class = "transient"
	require.Zero(t, w.Settle(c, outcomes...))
	require.Equal(t, []outbox.Status{outbox.Published, outbox.Failed, outbox.Pending, outbox.Failed}, b.Statuses())
}

func fiveFailures(t *testing.T, b *Bench) {
	b.Insert("a")
	w := b.Worker("w1", Partitions, time.Minute)
	for n := 1; n <= 5; n++ {
		c := w.Claim(1)
		require.Len(t, c.Rows, 1)
		require.Equal(t, n, c.Rows[0].Attempts, "one try is one attempt")
		o := failed(-time.Second)
		o.Error = fmt.Sprintf("failure %d", n)
		if n == 5 {
			o.Status = outbox.Abandoned
		}
		w.Settle(c, All(c, o)...)
		e := b.Entries()[0]
		require.Equal(t, o.Status, e.Status)
		require.Equal(t, n, e.Attempts, "not once more for the failure")
		require.Equal(t, o.Error, e.LastError)
		require.Empty(t, e.LockedBy)
		require.Nil(t, e.LockedUntil)
	}
	require.Empty(t, w.Claim(10).Rows)
	b.Exec("UPDATE outbox SET available_at = " + past(b.DB))
	b.Expire()
	require.Empty(t, b.Worker("w2", Partitions, time.Minute).Claim(10).Rows, "nor by another")
}

func failedSayWhy(t *testing.T, b *Bench) {
	rows := b.Insert("a", "b", "c", "d")
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(3)
	w.Settle(c, outbox.Outcome{Seq: c.Rows[0].Seq, Status: outbox.Failed, Class: "transient", Error: "first", After: time.Hour},
		outbox.Outcome{Seq: c.Rows[1].Seq, Status: outbox.Published},
		outbox.Outcome{Seq: c.Rows[2].Seq, Status: outbox.Failed, Class: "unknown", Error: "third", After: time.Hour})
	found, err := b.Find(t.Context(), outbox.Filter{Statuses: []outbox.Status{outbox.Failed}})
	require.NoError(t, err)
	require.Len(t, found, 2)
	for i, row := range []outbox.Row{rows[0], rows[2]} {
		require.Equal(t, row.MessageID, found[i].MessageID)
		require.Equal(t, row.MessageType, found[i].MessageType)
		require.Equal(t, 1, found[i].Attempts)
		require.WithinDuration(t, *found[i].LastAttemptAt, found[i].CreatedAt, time.Minute)
	}
	require.Equal(t, []string{"first", "third"}, []string{found[0].LastError, found[1].LastError})
	require.Equal(t, []string{"transient", "unknown"}, []string{found[0].FailureClass, found[1].FailureClass})
}

func errorText(t *testing.T, b *Bench) {
	text := "it's \"so\" `bad`; DROP TABLE outbox; -- ?0 ?1 $1 %s \\n\r\n\ttab \u00fc \u6f22 \U0001F69A \u202e"
	for stored, want := range map[string]string{
		text:               text,
		"nul \x00 inside":  "nul \uFFFD inside",
		"bytes \xff\xfe !": "bytes \uFFFD !",
	} {
		b.Exec("DELETE FROM outbox")
		b.Insert("a")
		w := b.Worker("w1", Partitions, time.Minute)
		c := w.Claim(1)
		require.Len(t, c.Rows, 1)
		o := failed(time.Hour)
		o.Error = stored
		w.Settle(c, All(c, o)...)
		require.Equal(t, want, b.Entries()[0].LastError)
		s, err := b.Stats(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, *s["default"].LastError)
		b.Expire()
	}
}

func staleDelete(t *testing.T, b *Bench) {
	b.Insert("a", "b")
	slow := b.Worker("slow", Partitions, time.Minute)
	late := slow.Claim(2)
	b.Expire()
	heir := b.Worker("heir", Partitions, time.Minute)
	c := heir.Claim(1)
	settle := func(c outbox.Claim) int {
		stale, err := b.Settle(t.Context(), outbox.Settlement{Claim: c.ID, Target: "default", Outcomes: All(c, published()), Retention: outbox.Retention{Delete: true}})
		require.NoError(t, err)
		return stale
	}
	deleted := func() int64 {
		s, err := b.Stats(t.Context())
		require.NoError(t, err)
		return s["default"].Counts[outbox.Published]
	}
	require.Equal(t, 2, settle(late))
	require.Equal(t, []outbox.Status{outbox.Processing, outbox.Pending}, b.Statuses())
	require.Zero(t, deleted(), "what wasn't deleted isn't counted")
	require.Zero(t, settle(c))
	require.Equal(t, []outbox.Status{outbox.Pending}, b.Statuses())
	require.EqualValues(t, 1, deleted())
}
