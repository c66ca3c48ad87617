package outboxdb_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/outbox"
)

func ofSettlements(test suiteTest) {
	test("Settle_S3_23_ClearsTheLock", settleClears)         // S2-36, S4-13
	test("Settle_A37_PublishedClearsTheError", clearsErrors) // S4-13
	test("Settle_S4_07_LongErrorIsCut", longError)           // S2-49
	test("Settle_S2_49_ErrorTextComesBack", errorText)
	test("Settle_FailedRowIsDueAfterItsDelay", failedDelay)  // C-19, C-22
	test("Settle_OfAnotherClaimChangesNothing", staleSettle) // C-25
	test("Settle_C_25_StaleDeleteRemovesNothing", staleDelete)
	test("Settle_ToleratesMissingRows", missingRows)
	test("Settle_HeldRowHoldsItsKey", heldRow) // C-24
	test("Settle_DeleteOnPublishKeepsCounting", deleteOnPublish)
	test("Settle_S2_07_AllOrNone", settleAllOrNone)
	test("Settle_S1_16_EachRowItsOwn", settledMixed) // S1-13
	test("Settle_S2_19_S4_12_C_18_FiveFailures", fiveFailures)
}

func settleClears(t *testing.T, b *bench) {
	b.Insert("a", "b", "c", "d")
	m := b.worker("w1")
	require.NoError(t, b.WriteRetention(t.Context(), outbox.Config{}))
	m.settles(published, failed(time.Hour), given, back)
	require.Equal(t, []outbox.Status{outbox.Published, outbox.Failed, outbox.Abandoned, outbox.Pending}, b.statuses())
	e := b.entries()
	for _, e := range e {
		require.Empty(t, e.LockedBy, e.Status)
		require.Nil(t, e.LockedUntil, e.Status)
		require.Zero(t, e.Fence, e.Status)
		require.Zero(t, e.ClaimID, e.Status)
	}
	require.InDelta(t, 168, e[0].ExpiresAt.Sub(*e[0].PublishedAt).Hours(), 0.1)
	require.Equal(t, "transient", e[1].FailureClass)
	require.Nil(t, e[1].ExpiresAt)
	require.Equal(t, "x", e[2].LastError)
	require.NotNil(t, e[2].ExpiresAt)
	require.Nil(t, e[3].ExpiresAt)
	require.Zero(t, e[3].Attempts, "what was handed back costs nothing")
	require.Equal(t, []string{"d"}, keys(m.claim(10)))
}

func clearsErrors(t *testing.T, b *bench) {
	b.Insert("a")
	m := b.worker("w1")
	m.settles(failed(0))
	require.Equal(t, "no", b.entries()[0].LastError)
	m.settles(published)
	e := b.entries()[0]
	require.Empty(t, e.LastError)
	require.Empty(t, e.FailureClass)
}

func longError(t *testing.T, b *bench) {
	b.Insert("a", "b")
	o := failed(time.Hour)
	o.err = "it's \"so\" bad:\n\x00" + strings.Repeat("ü", 5000) + string([]byte{0xff})
	gone := o
	gone.status = outbox.Abandoned
	b.worker("w1").settles(o, gone)
	for _, e := range b.entries() {
		require.Len(t, []rune(e.LastError), 2048)
		require.Contains(t, e.LastError, "it's \"so\" bad:\n")
	}
}

func errorText(t *testing.T, b *bench) {
	text := "it's \"so\" `bad`; DROP TABLE outbox; -- ?0 ?1 $1 %s \\n\r\n\ttab \u00fc \u6f22 \U0001F69A \u202e {\"a\",NULL}"
	m := b.worker("w1")
	for stored, want := range map[string]string{
		text:               text,
		"nul \x00 inside":  "nul \uFFFD inside",
		"bytes \xff\xfe !": "bytes \uFFFD !",
	} {
		o := failed(time.Hour)
		o.err = stored
		seq := b.inState(m, uuid.NewString(), o)
		require.Equal(t, want, b.entry(seq).LastError)
		require.Equal(t, want, *b.stats("default").LastError)
	}
}

func failedDelay(t *testing.T, b *bench) {
	b.Insert("a")
	m := b.worker("w1")
	m.settles(failed(time.Hour))
	e := b.entries()[0]
	require.InDelta(t, 3600, e.AvailableAt.Sub(*e.LastAttemptAt).Seconds(), 20)
	require.Empty(t, m.claim(1).rows)
	b.due()
	require.Len(t, m.claim(1).rows, 1)
}

func staleSettle(t *testing.T, b *bench) {
	b.Insert("a")
	m := b.worker("w1")
	c := m.claim(1)
	other := c
	other.n++
	require.False(t, m.Settle(m.settlement(other, published)))
	require.Equal(t, []outbox.Status{outbox.Processing}, b.statuses())
	require.True(t, m.settle(c, published))
	require.False(t, m.settle(c, failed(time.Hour)), "a settled claim can't be settled again")
	require.Equal(t, []outbox.Status{outbox.Published}, b.statuses())
}

func staleDelete(t *testing.T, b *bench) {
	b.Insert("a", "b")
	slow := b.worker("slow")
	late := slow.claim(2)
	heir := b.heir(slow)
	c := heir.claim(1)
	settle := func(m *member, c claim) bool {
		s := m.settlement(c, published)
		s.Delete = true
		return m.Settle(s)
	}
	require.False(t, settle(slow, late))
	require.Equal(t, []outbox.Status{outbox.Processing, outbox.Pending}, b.statuses())
	require.Zero(t, b.stats("default").Counts[outbox.Published], "what wasn't deleted isn't counted")
	require.True(t, settle(heir, c))
	require.Equal(t, []outbox.Status{outbox.Pending}, b.statuses())
	require.EqualValues(t, 1, b.stats("default").Counts[outbox.Published])
}

func missingRows(t *testing.T, b *bench) {
	b.Insert("a", "b")
	m := b.worker("w1")
	c := m.claim(2)
	b.Exec("DELETE FROM outbox_queue WHERE seq = ?", c.rows[0].Seq)
	b.Exec("DELETE FROM outbox_messages WHERE seq = ?", c.rows[0].Seq)
	require.True(t, m.settle(c, published))
	require.Equal(t, []outbox.Status{outbox.Published}, b.statuses())
	require.EqualValues(t, 1, b.stats("default").Counts[outbox.Published])
}

func heldRow(t *testing.T, b *bench) {
	b.Insert("a", "b")
	m := b.worker("w1")
	m.settles(held, given)
	b.Insert("a", "b")
	require.Equal(t, []string{"b"}, keys(m.claim(10)), "a is held, b is skipped")
	require.True(t, b.entries()[0].Held)
	require.Nil(t, b.entries()[0].ExpiresAt, "a held row is kept")
}

func deleteOnPublish(t *testing.T, b *bench) {
	b.Insert("a", "b")
	m := b.worker("w1")
	s := m.settlement(m.claim(2), published, failed(time.Hour))
	s.Delete = true
	require.True(t, m.Settle(s))
	require.Equal(t, []outbox.Status{outbox.Failed}, b.statuses())
	require.EqualValues(t, 1, b.stats("default").Counts[outbox.Published])
	require.EqualValues(t, 1, b.stats("default").Counts[outbox.Failed])
}

// One of four outcomes is none that the database knows: nothing of them is applied,
// and the write-back can be made again.
func settleAllOrNone(t *testing.T, b *bench) {
	b.Insert("a", "b", "c", "d")
	m := b.worker("w1")
	c := m.claim(10)
	before := b.entries()
	s := m.settlement(c, published, failed(time.Hour), back, failed(time.Hour))
	s.Failed[1].Class = "no class"
	for _, remove := range []bool{false, true} {
		s.Delete = remove
		_, err := b.Settle(t.Context(), s)
		require.Error(t, err)
		require.Equal(t, before, b.entries(), "all are in hand as before")
	}
	s.Failed[1].Class, s.Delete = "transient", false
	require.True(t, m.Settle(s))
	require.Equal(t, []outbox.Status{outbox.Published, outbox.Failed, outbox.Pending, outbox.Failed}, b.statuses())
}

func settledMixed(t *testing.T, b *bench) {
	b.Insert("a", "b", "c", "d", "e")
	require.NoError(t, b.WriteRetention(t.Context(), outbox.Config{Retention: outbox.Retention{Published: 3 * time.Hour, Abandoned: 48 * time.Hour}}))
	first, third, fifth := failed(time.Hour), given, failed(time.Hour)
	first.err, third.err, fifth.err = "first", "third", "fifth"
	b.worker("w1").settles(first, published, third, published, fifth)
	entries := b.entries()
	require.Equal(t, []outbox.Status{outbox.Failed, outbox.Published, outbox.Abandoned, outbox.Published, outbox.Failed}, b.statuses())
	for i, want := range []string{"first", "", "third", "", "fifth"} {
		require.Equal(t, want, entries[i].LastError)
		require.Equal(t, 1, entries[i].Attempts)
		require.NotNil(t, entries[i].LastAttemptAt)
	}
	for i, hours := range map[int]float64{1: 3, 2: 48, 3: 3} {
		require.InDelta(t, hours, entries[i].ExpiresAt.Sub(*entries[i].LastAttemptAt).Hours(), 0.05)
	}
	require.Nil(t, entries[0].ExpiresAt)
	require.WithinDuration(t, *entries[1].LastAttemptAt, *entries[1].PublishedAt, time.Minute)
	require.Nil(t, entries[2].PublishedAt)
}

func fiveFailures(t *testing.T, b *bench) {
	b.Insert("a")
	m := b.worker("w1")
	for n := 1; n <= 5; n++ {
		o := failed(0)
		o.err = fmt.Sprintf("failure %d", n)
		if n == 5 {
			o.status = outbox.Abandoned
		}
		m.settles(o)
		e := b.entries()[0]
		require.Equal(t, o.status, e.Status)
		require.Equal(t, n, e.Attempts, "one try is one attempt")
		require.Equal(t, o.err, e.LastError)
		require.Empty(t, e.LockedBy)
		require.Nil(t, e.LockedUntil)
	}
	require.Empty(t, m.claim(10).rows)
	require.Empty(t, b.heir(m).claim(10).rows, "nor by another")
}
