package outboxdb_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/outbox"
)

var _ relay.Store = (*outboxdb.Store)(nil)

func TestLanes_AreMadeOnce(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.Insert("k") // made its lane, without partitions
		for range 2 {
			ids, partitions, err := b.Lanes(t.Context(), []string{"it's new", "default"})
			require.NoError(t, err)
			require.Equal(t, outboxdbtest.Partitions, partitions)
			require.Equal(t, []relay.LaneID{2, 1}, ids)
			require.EqualValues(t, 2*outboxdbtest.Partitions, b.Count("SELECT count(*) FROM outbox_partitions WHERE owner IS NULL"))
		}
	})
}

// A database that is restored forgets which numbers it has given. Who lived then must not find
// its own number as another's, nor publish what is another target's.
func TestJoin_NoNumberIsGivenAgain(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		m := b.Join("one", time.Minute, 5)
		require.NoError(t, b.Leave(t.Context(), []relay.MemberID{m.ID}))
		if b.DB.Dialect().Name() == dialect.PG {
			b.Exec("ALTER TABLE outbox_members ALTER COLUMN member RESTART")
		} else {
			b.Exec("DELETE FROM sqlite_sequence WHERE name = 'outbox_members'")
		}
		require.NotEqual(t, m.ID, b.Join("two", time.Minute, 5).ID)

		was := relay.Joining{Lane: m.Lane, Target: "default"}
		b.Exec("UPDATE outbox_lanes SET target = 'another' WHERE target = 'default'")
		other, _, err := b.Lanes(t.Context(), []string{"partner"})
		require.NoError(t, err)
		members, err := b.Store.Join(t.Context(), "one", []relay.Joining{was, {Lane: other[0], Target: "partner"}}, time.Minute)
		require.NoError(t, err)
		require.Zero(t, members[0], "the number is another target's")
		require.NotZero(t, members[1], "which holds up no other target")
		require.EqualValues(t, 1, b.Count("SELECT count(*) FROM outbox_members WHERE name = 'one'"))
	})
}

func TestMembers_TakeRenewReleaseLeave(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		one := b.Join("one", time.Minute, 5)
		two := b.Join("two", time.Minute, 100)
		require.Len(t, one.Parts, 5)
		require.Len(t, two.Parts, 3)
		require.Empty(t, slices.DeleteFunc(slices.Clone(two.Parts), func(p int) bool { return !slices.Contains(one.Parts, p) }))

		require.NoError(t, b.Release(t.Context(), one.ID, one.Lane, append(one.Parts[:2:2], two.Parts...)))
		renewed, err := b.Renew(t.Context(), []relay.Renewal{
			{Member: two.ID, Target: "default", Healthy: true, Broker: outbox.BrokerIdentity{System: "kafka", Cluster: "c", TopicPrefix: "p."}},
			{Member: one.ID, Target: "default", Trouble: "the broker's away: \"x\"\x00"},
			{Member: 99},
		}, time.Minute)
		require.NoError(t, err)
		require.ElementsMatch(t, []relay.Renewed{{Member: one.ID, Parts: one.Parts[2:]}, {Member: two.ID, Parts: two.Parts}}, renewed)
		require.EqualValues(t, 1, b.Count("SELECT count(*) FROM outbox_members WHERE trouble IS NOT NULL AND NOT healthy"))
		stats, err := b.Stats(t.Context())
		require.NoError(t, err)
		require.ElementsMatch(t, []outbox.Member{
			{Name: "one", Partitions: 3, Trouble: "the broker's away: \"x\"\uFFFD"},
			{Name: "two", Partitions: 3, Healthy: true, Broker: &outbox.BrokerIdentity{System: "kafka", Cluster: "c", TopicPrefix: "p."}},
		}, stats["default"].Members)

		p, err := b.Poll(t.Context(), []relay.LaneID{one.Lane})
		require.NoError(t, err)
		for i := range p.Lanes[0].Members {
			require.WithinDuration(t, p.Now.Add(time.Minute), p.Lanes[0].Members[i].Until, 50*time.Second)
			p.Lanes[0].Members[i].Until = time.Time{}
		}
		slices.SortFunc(p.Lanes[0].Members, func(a, b relay.MemberState) int { return strings.Compare(a.Name, b.Name) })
		require.Equal(t, []relay.PolledLane{{Free: 2, Members: []relay.MemberState{
			{ID: one.ID, Name: "one", Parts: 3}, {ID: two.ID, Name: "two", Healthy: true, Parts: 3},
		}}}, p.Lanes)

		require.NoError(t, b.Leave(t.Context(), []relay.MemberID{one.ID}))
		parts, err := b.Take(t.Context(), two.ID, two.Lane, 100)
		require.NoError(t, err)
		require.Len(t, parts, 5)
		parts, err = b.Take(t.Context(), one.ID, one.Lane, 100)
		require.NoError(t, err)
		require.Empty(t, parts)
		again := b.Join("one", time.Minute, 1)
		require.NotEqual(t, again.ID, two.ID, "no number is used twice")
	})
}

// F-54: who joined before a crash of the server, or on the primary whose standby was promoted,
// claims, takes, releases and renews nothing: what it knows may be undone. outbox_uncrashed is empty then.
func TestClaim_F_54_NotByWhoJoinedBeforeTheServersCrash(t *testing.T) {
	b := outboxdbtest.Open(t, outboxdbtest.PostgreSQL(t))
	b.Insert("k")
	m := b.Join("one", time.Minute, 100)
	rows := m.Look(10)
	require.Len(t, rows, 1)
	require.NoError(t, b.Release(t.Context(), m.ID, m.Lane, m.Parts[:1]))
	b.Exec("TRUNCATE outbox_uncrashed")
	c, err := b.Claim(t.Context(), m.Next(rows...))
	require.NoError(t, err)
	require.False(t, c.Alive)
	require.Empty(t, c.Rows)
	require.Zero(t, b.Count("SELECT count(*) FROM outbox_claims"))
	parts, err := b.Take(t.Context(), m.ID, m.Lane, 1)
	require.NoError(t, err)
	require.Empty(t, parts)
	// Of what it has settled and would release it may have rows in hand again.
	require.NoError(t, b.Release(t.Context(), m.ID, m.Lane, m.Parts))
	require.EqualValues(t, outboxdbtest.Partitions-1, b.Count("SELECT count(*) FROM outbox_partitions WHERE owner IS NOT NULL"))
	renewed, err := b.Renew(t.Context(), []relay.Renewal{{Member: m.ID, Target: "default", Healthy: true}}, time.Minute)
	require.NoError(t, err)
	require.Empty(t, renewed)

	require.NoError(t, b.Leave(t.Context(), []relay.MemberID{m.ID}))
	again := b.Join("one", time.Minute, 100)
	require.Len(t, again.Parts, outboxdbtest.Partitions)
	require.Len(t, again.ClaimAll(), 1)
}

// A lapsed lease may be renewed as long as nobody has reaped it, and a reap ends none
// that hasn't.
func TestReap_OnlyWhoseLeaseHasPassed(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.Insert(outboxdbtest.Numbered("k", 20)...)
		m := b.Join("one", time.Minute, 100)
		rows := m.ClaimAll()
		require.Len(t, rows, 20)
		r, err := b.Reap(t.Context(), m.ID, false)
		require.NoError(t, err)
		require.Zero(t, r)
		require.EqualValues(t, 8, b.Count("SELECT count(*) FROM outbox_partitions WHERE owner IS NOT NULL"))

		b.Expire()
		p, err := b.Poll(t.Context(), []relay.LaneID{m.Lane})
		require.NoError(t, err)
		require.True(t, p.Lanes[0].Members[0].Expired)
		renewed, err := b.Renew(t.Context(), []relay.Renewal{{Member: m.ID, Target: "default", Healthy: true}}, time.Minute)
		require.NoError(t, err)
		require.Len(t, renewed, 1)

		b.Expire()
		r, err = b.Reap(t.Context(), m.ID, false)
		require.NoError(t, err)
		require.Equal(t, relay.Reaped{Parts: 8, Rows: 20, Done: true}, r)
		require.False(t, m.Settle(m.Settlement(rows...)), "the late worker settles nothing")
		require.EqualValues(t, 20, b.Count("SELECT count(*) FROM outbox_queue WHERE losses = 1"))
		require.Zero(t, b.Count("SELECT count(*) FROM outbox_claims"))
		require.Zero(t, b.Count("SELECT count(*) FROM outbox_partitions WHERE owner IS NOT NULL"))
		c, err := b.Claim(t.Context(), m.Next())
		require.NoError(t, err)
		require.False(t, c.Alive)
		renewed, err = b.Renew(t.Context(), []relay.Renewal{{Member: m.ID, Target: "default"}}, time.Minute)
		require.NoError(t, err)
		require.Empty(t, renewed, "it is dead")
		r, err = b.Reap(t.Context(), m.ID, true)
		require.NoError(t, err)
		require.Zero(t, r)
	})
}

// From the begin of its reap on a member has nothing new, though its row stays until it is known how
// its transaction ended: a claim made by then would be freed while its messages are under way, and a
// renewal would let it go on with partitions that are to be another one's.
func TestReap_WhoseHasBegunClaimsRenewsAndTakesNothing(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		const firstSlot = 1 << 48
		b.Insert("a", "b")
		m := b.Join("one", time.Minute, 100)
		rows := m.Look(10)
		require.Len(t, rows, 2)
		q := m.Next(rows[0])
		q.N += firstSlot
		c, err := b.Claim(t.Context(), q)
		require.NoError(t, err)
		require.Len(t, c.Rows, 1)
		b.Expire()
		reaped, err := b.Reap(t.Context(), m.ID, false)
		require.NoError(t, err)
		require.False(t, reaped.Done)
		require.Len(t, reaped.Undecided, 1)

		c, err = b.Claim(t.Context(), m.Next(rows[1]))
		require.NoError(t, err)
		require.False(t, c.Alive)
		require.EqualValues(t, 1, b.Count("SELECT count(*) FROM outbox_claims"))
		renewed, err := b.Renew(t.Context(), []relay.Renewal{{Member: m.ID, Target: "default", Healthy: true}}, time.Minute)
		require.NoError(t, err)
		require.Empty(t, renewed)
		require.NoError(t, b.Release(t.Context(), m.ID, m.Lane, m.Parts[:1]))
		parts, err := b.Take(t.Context(), m.ID, m.Lane, 1)
		require.NoError(t, err)
		require.Empty(t, parts)
		again, err := b.Reap(t.Context(), m.ID, false)
		require.NoError(t, err)
		require.Equal(t, reaped, again, "its lease is over, as it was")
		reaped, err = b.Finish(t.Context(), m.ID)
		require.NoError(t, err)
		require.Equal(t, relay.Reaped{Parts: outboxdbtest.Partitions - 1, Rows: 1, Done: true}, reaped)
	})
}

// O14: a reap touches what was in hand, whatever waits.
func TestReap_O14_TouchesOnlyWhatWasInHand(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		m := b.Join("dead", time.Second, 100)
		fill(b, 100_000)
		m.Claim(m.Look(10)...)
		b.Expire()
		begin := time.Now()
		r, err := b.Reap(t.Context(), m.ID, false)
		require.NoError(t, err)
		t.Logf("it took %v", time.Since(begin)) // What it reads is counted by TestPlans.
		require.Equal(t, relay.Reaped{Parts: 8, Rows: 80, Done: true}, r)
		require.EqualValues(t, 80, b.Count("SELECT count(*) FROM outbox_queue WHERE losses > 0"))
		heir := b.Join("heir", time.Second, 100)
		require.Len(t, heir.Parts, 8)
	})
}

// fill makes a backlog of n rows, of n/10 keys.
func fill(b *outboxdbtest.Bench, n int) {
	b.T.Helper()
	b.Insert("first") // makes the lane
	series, uuids, bytes := fmt.Sprintf("generate_series(1, %d) AS n", n), "gen_random_uuid(), gen_random_uuid()", "'\\x00'"
	if b.SQLite() {
		series = fmt.Sprintf("(WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < %d) SELECT n FROM s)", n)
		uuids, bytes = "'id-' || n, 'message-' || n", "x'00'"
	}
	b.Exec(strings.NewReplacer("{series}", series, "{uuids}", uuids, "{bytes}", bytes).Replace(`
INSERT INTO outbox_messages (lane, part, id, message_id, stream, stream_category, partition_key, message_type, aggregate_type, aggregate_id, aggregate_version,
	payload, content_type, occurred_at, key, topic_hash, bytes)
SELECT 1, n % 8, {uuids}, 's', 'c', 'k', 't', 'a', 'i', 1, {bytes}, 'application/json', '2026-01-02T03:04:05.000Z', (n / 80) * 8 + n % 8, 7, 300
FROM {series}`))
	b.Exec("INSERT INTO outbox_queue (lane, part, seq, key, topic, bytes) SELECT lane, part, seq, key, topic_hash, bytes FROM outbox_messages WHERE stream = 's'")
}
