package outboxdb_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/relay"
)

func ofLooks(test suiteTest) {
	test("LookAndClaim_TakesAllThatItFinds", claimsFound)
	test("LookAndClaim_NothingThatCannotGoAsItIs", claimsNothing)
	test("LookAndClaim_NothingForWhoIsGone", claimsForNobody)
}

// lookAndClaim asks for at most limit rows of each of the member's partitions, above low, and
// has them claimed if they are at most so many rows and bytes.
func (m *member) lookAndClaim(low int64, limit, rows, bytes int) (relay.LookRequest, relay.Looked) {
	m.T.Helper()
	q := relay.LookRequest{Member: m.ID, Lane: m.Lane, N: m.Next().N, Limit: limit, Rows: rows, Bytes: bytes}
	for _, p := range m.Parts {
		q.Parts = append(q.Parts, relay.PartLow{Part: p, Low: low})
	}
	l, err := m.Store.LookAndClaim(m.T.Context(), q)
	require.NoError(m.T, err)
	return q, l
}

const enough = 1 << 20

// What it claims is what a look finds, and what a claim of that reads; it is settled like one.
func claimsFound(t *testing.T, b *bench) {
	m := b.worker("w1")
	_, l := m.lookAndClaim(0, 100, 4, enough)
	require.Empty(t, l.Found)
	require.False(t, l.Claim.Alive)
	require.Zero(t, b.Count("SELECT count(*) FROM outbox_claims"), "nothing has no token")

	b.Insert("a", "b", "a", "c")
	want, look := m.claim(100), m.Look(100)
	known, err := b.Settle(t.Context(), relay.Settlement{Member: m.ID, Lane: m.Lane, N: want.n})
	require.NoError(t, err)
	require.True(t, known)

	q, l := m.lookAndClaim(0, 100, 4, enough)
	require.True(t, l.Claim.Alive)
	require.Equal(t, look, l.Found)
	require.Len(t, l.Claim.Rows, 4)
	for i := range l.Claim.Rows {
		require.Positive(t, l.Claim.Rows[i].Waited)
		l.Claim.Rows[i].Waited = want.rows[i].Waited
	}
	require.Equal(t, want.rows, l.Claim.Rows)
	require.Equal(t, "w1", b.entries()[0].LockedBy)
	known, err = b.Settle(t.Context(), relay.Settlement{Member: m.ID, Lane: m.Lane, N: q.N, Published: refs(l.Claim.Rows)})
	require.NoError(t, err)
	require.True(t, known)
	require.Zero(t, b.Count("SELECT count(*) FROM outbox_queue"))
	require.Zero(t, b.Count("SELECT count(*) FROM outbox_claims"))

	rows := b.Insert("d", "d", "d")
	_, l = m.lookAndClaim(l.Claim.Rows[3].Seq+1, 100, 4, enough)
	require.Len(t, l.Claim.Rows, len(rows)-1, "above low")

	b.Exec("DELETE FROM outbox_messages WHERE seq = " + fmt.Sprint(l.Found[1].Seq))
	_, l = m.lookAndClaim(l.Found[0].Seq-1, 100, 4, enough)
	require.Len(t, l.Found, 2)
	require.Len(t, l.Claim.Rows, 1, "a row without a message is not sent")
	require.NotEmpty(t, l.Claim.Rows[0].Payload)
}

func refs(rows []relay.Claimed) (refs []relay.RowRef) {
	for _, r := range rows {
		refs = append(refs, r.Ref())
	}
	return refs
}

// A row that waits, or has a loss, or more bytes than may be read, or more rows than were asked
// for: then it is a look.
func claimsNothing(t *testing.T, b *bench) {
	m := b.worker("w1")
	b.Insert("a", "b")
	look := func(rows, bytes int) {
		t.Helper()
		_, l := m.lookAndClaim(0, 100, rows, bytes)
		require.False(t, l.Claim.Alive)
		require.Empty(t, l.Claim.Rows)
		require.Equal(t, m.Look(100), l.Found)
		require.Len(t, l.Found, 2)
		require.Zero(t, b.Count("SELECT count(*) FROM outbox_claims"))
	}
	bytes := b.Count("SELECT sum(bytes) FROM outbox_queue")
	look(2, int(bytes)-1)
	look(1, enough)
	for state, change := range map[string]string{
		"held": "held = true", "due later": "due_at = " + strings.NewReplacer("-1 hours", "+1 hours", "- interval", "+ interval").Replace(past(b.Bench)), "with a loss": "losses = 1",
	} {
		t.Log(state)
		b.Exec(fmt.Sprintf("UPDATE outbox_queue SET %s WHERE seq = 2", change))
		look(2, enough)
		b.Exec("UPDATE outbox_queue SET held = false, due_at = NULL, losses = 0")
	}
	b.Exec("UPDATE outbox_queue SET due_at = " + past(b.Bench)) // its time has come
	b.Insert("b")
	bytes = b.Count("SELECT sum(bytes) FROM outbox_queue")
	_, l := m.lookAndClaim(0, 2, 3, enough)
	require.False(t, l.Claim.Alive, "the page is full")
	require.Len(t, l.Found, 3)
	_, l = m.lookAndClaim(0, 1, 3, enough)
	require.Len(t, l.Found, 2, "of each partition so many")
	_, l = m.lookAndClaim(0, 3, 3, int(bytes))
	require.Len(t, l.Claim.Rows, 3)
}

// [NOLOCK, NOEXPEL]: whose membership has ended looks, and claims nothing.
func claimsForNobody(t *testing.T, b *bench) {
	b.Insert("a")
	look := func(m *member) {
		t.Helper()
		_, l := m.lookAndClaim(0, 100, 4, enough)
		require.Len(t, l.Found, 1)
		require.False(t, l.Claim.Alive)
		require.Zero(t, b.Count("SELECT count(*) FROM outbox_claims"))
	}
	m := b.worker("w1")
	heir := b.heir(m)
	look(m)
	if !b.SQLite() {
		b.Exec("DELETE FROM outbox_uncrashed") // as the server's crash does
		look(heir)
		b.Exec("INSERT INTO outbox_uncrashed SELECT member FROM outbox_members")
	}
	b.Exec("UPDATE outbox_members SET until = " + map[bool]string{true: "'1970-01-01T00:00:00.000Z'", false: "'epoch'"}[b.SQLite()]) // its reap has begun
	look(heir)
}
