package outboxdbtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/relay"
)

// Member publishes for target "default".
type Member struct {
	Store *outboxdb.Store
	T     testing.TB
	ID    relay.MemberID
	Lane  relay.LaneID
	Parts []int
	n     int64
}

// Join makes a member that takes at most n partitions.
func (b *Bench) Join(name string, lease time.Duration, n int) *Member {
	b.T.Helper()
	ids, _, err := b.Lanes(b.T.Context(), []string{"default"})
	require.NoError(b.T, err)
	members, err := b.Store.Join(b.T.Context(), name, []relay.Joining{{Lane: ids[0], Target: "default"}}, lease)
	require.NoError(b.T, err)
	m := &Member{Store: b.Store, T: b.T, ID: members[0], Lane: ids[0]}
	m.Parts, err = b.Take(b.T.Context(), m.ID, m.Lane, n)
	require.NoError(b.T, err)
	return m
}

// Look reads at most limit rows of each of its partitions.
func (m *Member) Look(limit int) []relay.QueueRow {
	m.T.Helper()
	var parts []relay.PartLow
	for _, p := range m.Parts {
		parts = append(parts, relay.PartLow{Part: p})
	}
	rows, err := m.Store.Look(m.T.Context(), m.Lane, parts, limit)
	require.NoError(m.T, err)
	return rows
}

// Next is the request for the member's next claim, of rows.
func (m *Member) Next(rows ...relay.QueueRow) relay.ClaimRequest {
	m.n++
	q := relay.ClaimRequest{Member: m.ID, Lane: m.Lane, N: m.n}
	for _, r := range rows {
		q.Rows = append(q.Rows, relay.RowRef{Part: r.Part, Seq: r.Seq, Key: r.Key})
	}
	return q
}

// Claim takes rows, and returns what was read of them.
func (m *Member) Claim(rows ...relay.QueueRow) []relay.Claimed {
	m.T.Helper()
	c, err := m.Store.Claim(m.T.Context(), m.Next(rows...))
	require.NoError(m.T, err)
	require.True(m.T, c.Alive)
	return c.Rows
}

// ClaimAll takes all that a look finds.
func (m *Member) ClaimAll() []relay.Claimed {
	m.T.Helper()
	return m.Claim(m.Look(100_000)...)
}

// Settlement is one of the member's last claim, in which rows are published.
func (m *Member) Settlement(published ...relay.Claimed) relay.Settlement {
	w := relay.Settlement{Member: m.ID, Lane: m.Lane, N: m.n}
	for _, r := range published {
		w.Published = append(w.Published, r.Ref())
	}
	return w
}

// Settle writes it back, and says whether the token was there.
func (m *Member) Settle(w relay.Settlement) bool {
	m.T.Helper()
	known, err := m.Store.Settle(m.T.Context(), w)
	require.NoError(m.T, err)
	return known
}

// Seqs are those of rows.
func Seqs(rows []relay.Claimed) []int64 {
	seqs := []int64{}
	for _, r := range rows {
		seqs = append(seqs, r.Seq)
	}
	return seqs
}

// Expire ends every lease, as time would.
func (b *Bench) Expire() {
	b.T.Helper()
	past := "clock_timestamp() - interval '1 hour'"
	if b.SQLite() {
		past = "strftime('%Y-%m-%dT%H:%M:%fZ','now','-1 hours')"
	}
	b.Exec("UPDATE outbox_members SET until = " + past)
}
