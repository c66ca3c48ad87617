package outboxdb_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/outbox"
)

// session is a transaction that has sent a step's statements, and has not ended.
type session struct {
	b   *outboxdbtest.Bench
	tx  *sql.Tx
	pid int
}

func open(t *testing.T, b *outboxdbtest.Bench) *session {
	t.Helper()
	tx, err := b.DB.DB.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	s := &session{b: b, tx: tx}
	require.NoError(t, tx.QueryRowContext(t.Context(), "SELECT pg_backend_pid()").Scan(&s.pid))
	return s
}

func (s *session) exec(query string, values ...any) {
	s.b.T.Helper()
	_, err := s.tx.ExecContext(s.b.T.Context(), query, values...)
	require.NoError(s.b.T, err)
}

// during runs a step, which has to wait for the session, and ends that one meanwhile.
func (s *session) during(step func()) {
	s.b.T.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		step()
	}()
	waittest.Until(s.b.T, func() bool {
		select {
		case <-done:
			return true // it hasn't waited; what it did shows
		default:
		}
		return s.b.Count("SELECT count(*) FROM pg_stat_activity WHERE ? = ANY (pg_blocking_pids(pid))", s.pid) > 0
	})
	require.NoError(s.b.T, s.tx.Commit())
	<-done
}

// raced is an outbox with two rows of one key and a member that has all partitions.
func raced(t *testing.T) (*outboxdbtest.Bench, *outboxdbtest.Member) {
	t.Parallel()
	b := outboxdbtest.Open(t, outboxdbtest.PostgreSQL(t))
	b.Insert("k", "k")
	return b, b.Join("one", time.Hour, 100)
}

func reapIn(s *session, m *outboxdbtest.Member) {
	reap := outboxdb.Postgres("reap")
	s.exec(reap[0], m.ID, true)
	s.exec(reap[1], m.ID, true)
	s.exec(reap[2], m.ID, false)
	s.exec(reap[3], m.ID, false)
	s.exec(reap[4], m.ID)
}

func claimIn(s *session, m *outboxdbtest.Member) relay.Settlement {
	q := m.Next(m.Look(10)...)
	w := m.Settlement()
	seqs := "{"
	for i, r := range q.Rows {
		if i > 0 {
			seqs += ","
		}
		seqs += fmt.Sprint(r.Seq)
		w.Published = append(w.Published, r)
	}
	s.exec(outboxdb.Postgres("claim")[0], m.ID, q.N, seqs+"}")
	return w
}

// Race 1. The switch NOLOCK, a claim that doesn't lock its member's row: the token is
// there after the reap.
func TestRace_AClaimDuringTheReapOfItsMemberHasNothing(t *testing.T) {
	b, m := raced(t)
	rows := m.Look(10)
	s := open(t, b)
	reapIn(s, m)
	s.during(func() {
		c, err := b.Claim(t.Context(), m.Next(rows...))
		require.NoError(t, err)
		require.False(t, c.Alive)
		require.Empty(t, c.Rows)
	})
	require.Zero(t, b.Count("SELECT count(*) FROM outbox_claims"))
}

// So it is with a look that claims. And what an operator changes meanwhile it sees [NOREREAD].
func TestRace_ALookThatClaimsWaitsForWhoHasItsMember(t *testing.T) {
	t.Parallel()
	for name, meanwhile := range map[string]func(s *session, m *outboxdbtest.Member){
		"a reap": reapIn,
		"an operator": func(s *session, m *outboxdbtest.Member) {
			s.exec("SELECT FROM outbox_members WHERE member = $1 FOR NO KEY UPDATE", m.ID)
			s.exec("UPDATE outbox_queue SET held = true WHERE seq = 1")
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, m := raced(t)
			q := relay.LookRequest{Member: m.ID, Lane: m.Lane, N: 1, Limit: 100, Rows: 2, Bytes: enough}
			for _, p := range m.Parts {
				q.Parts = append(q.Parts, relay.PartLow{Part: p})
			}
			s := open(t, b)
			meanwhile(s, m)
			s.during(func() {
				l, err := b.LookAndClaim(t.Context(), q)
				require.NoError(t, err)
				require.Len(t, l.Found, 2)
				require.False(t, l.Claim.Alive)
			})
			require.Zero(t, b.Count("SELECT count(*) FROM outbox_claims"))
		})
	}
}

// Claims of one member don't wait for each other, which saves the relay as much time as
// the database's answers take.
func TestRace_ClaimsOfOneMemberRunAtATime(t *testing.T) {
	b, m := raced(t)
	rows := m.Look(10)
	s := open(t, b)
	claimIn(s, m)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := b.Claim(ctx, m.Next(rows...))
	require.NoError(t, err, "it has waited for the other one")
	require.True(t, c.Alive)
	require.Len(t, c.Rows, 2)
	require.NoError(t, s.tx.Commit())
}

// A claim that isn't answered may still run when the next one forgets it: what it inserts
// goes, too, or its rows would count as lost when the member ends.
func TestRace_AClaimThatStillRunsIsForgotten(t *testing.T) {
	b, m := raced(t)
	rows := m.Look(10)
	s := open(t, b)
	forgotten := claimIn(s, m).N
	s.during(func() {
		q := m.Next(rows...)
		q.Forget = []int64{forgotten}
		c, err := b.Claim(t.Context(), q)
		require.NoError(t, err)
		require.Len(t, c.Rows, 2)
	})
	require.EqualValues(t, 1, b.Count("SELECT count(*) FROM outbox_claims"))
	require.Zero(t, b.Count("SELECT count(*) FROM outbox_claims WHERE n = ?", forgotten))
}

// Races 2 and 3. The switch SWEEPEARLY, tokens read before the member's row is locked:
// the token stays, and the late settle settles two rows. So it does with KEEPTOKENS.
func TestRace_AReapWaitsForAClaimAndSeesItsToken(t *testing.T) {
	b, m := raced(t)
	s := open(t, b)
	w := claimIn(s, m)
	s.during(func() {
		r, err := b.Reap(t.Context(), m.ID, true)
		require.NoError(t, err)
		require.Equal(t, relay.Reaped{Parts: 8, Rows: 2, Done: true}, r)
	})
	require.Zero(t, b.Count("SELECT count(*) FROM outbox_claims"))
	require.False(t, m.Settle(w))
	require.EqualValues(t, 2, b.Count("SELECT count(*) FROM outbox_queue WHERE losses = 1"))
}

// Race 4. The switch NOTOKEN, a settle that isn't bound to its token: the rows are gone.
func TestRace_ASettleDuringTheReapSettlesNothing(t *testing.T) {
	b, m := raced(t)
	w := m.Settlement(m.ClaimAll()...)
	w.N = 1
	s := open(t, b)
	reapIn(s, m)
	s.during(func() { require.False(t, m.Settle(w)) })
	require.EqualValues(t, 2, b.Count("SELECT count(*) FROM outbox_queue WHERE losses = 1"))
	require.Zero(t, b.Count("SELECT count(*) FROM outbox_log"))
}

// Race 5. S3-21: a reap waits for the settle that is under way.
func TestRace_AReapDuringASettleAddsNoLoss(t *testing.T) {
	b, m := raced(t)
	claimed := m.ClaimAll()
	require.Len(t, claimed, 2)
	s := open(t, b)
	twice := func(n int64) string { return fmt.Sprintf("{%[1]d,%[1]d}", n) }
	s.exec(outboxdb.Postgres("settle_published")[0], m.ID, 1, m.Lane, twice(int64(claimed[0].Partition)), "{1,2}", twice(claimed[0].KeyHash), false)
	s.during(func() {
		r, err := b.Reap(t.Context(), m.ID, true)
		require.NoError(t, err)
		require.Equal(t, relay.Reaped{Parts: 8, Done: true}, r)
	})
	require.Zero(t, b.Count("SELECT count(*) FROM outbox_queue"))
	require.EqualValues(t, 1, b.Count("SELECT count(*) FROM outbox_log WHERE published = 2"))
}

// Race 6. The switch NOREREAD, a claim that believes the look: it has row 1.
// Conformance: C-26.
func TestRace_AClaimWaitsForAVerbAndReadsAgain(t *testing.T) {
	b, m := raced(t)
	rows := m.Look(10)
	s := open(t, b)
	s.exec("SELECT 1 FROM outbox_partitions WHERE lane = $1 FOR UPDATE", m.Lane)
	s.exec("SELECT 1 FROM outbox_members WHERE member = $1 FOR UPDATE", m.ID)
	s.exec("DELETE FROM outbox_queue WHERE seq = 1")
	s.during(func() { require.Equal(t, []int64{2}, outboxdbtest.Seqs(m.Claim(rows...))) })
}

// Race 7.
// Conformance: C-17.
func TestRace_AVerbWaitsForAClaimAndLeavesItsRows(t *testing.T) {
	b, m := raced(t)
	s := open(t, b)
	w := claimIn(s, m)
	s.during(func() {
		r, err := b.Change(t.Context(), outbox.Filter{Seqs: []int64{1, 2}}, outbox.Change{Verb: outbox.VerbAbandon, Actor: "ada"})
		require.NoError(t, err)
		require.Zero(t, r.Changed)
	})
	require.EqualValues(t, 2, b.Count("SELECT count(*) FROM outbox_queue"))
	require.True(t, m.Settle(w))
}

// The switch TAKEBLIND, a take that doesn't look at its own member's row: partitions
// belong to a member that is no more.
func TestRace_ATakeDuringTheReapOfItsMemberTakesNothing(t *testing.T) {
	b, m := raced(t)
	require.NoError(t, b.Release(t.Context(), m.ID, m.Lane, m.Parts[:3]))
	s := open(t, b)
	reapIn(s, m)
	s.during(func() {
		parts, err := b.Take(t.Context(), m.ID, m.Lane, 100)
		require.NoError(t, err)
		require.Empty(t, parts)
	})
	require.Zero(t, b.Count("SELECT count(*) FROM outbox_partitions WHERE owner IS NOT NULL"))
}

// A take that its renewal waits for is in the renewal's answer.
func TestRace_ARenewalSeesTheTakeThatItWaitedFor(t *testing.T) {
	b, m := raced(t)
	require.NoError(t, b.Release(t.Context(), m.ID, m.Lane, m.Parts))
	s := open(t, b)
	take := outboxdb.Postgres("take")
	s.exec(take[0], m.ID)
	s.exec(take[1], m.ID, m.Lane, 3)
	s.during(func() {
		renewed, err := b.Renew(t.Context(), []relay.Renewal{{Member: m.ID, Target: "default", Healthy: true}}, time.Minute)
		require.NoError(t, err)
		require.Len(t, renewed, 1)
		require.Len(t, renewed[0].Parts, 3)
	})
}
