package relaytest

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/outbox"
)

// Database is a store that is to conform, and what the suite needs beside it.
type Database interface {
	relay.Store
	// InsertRows commits rows of target "default".
	InsertRows(rows ...outbox.Row)
}

// InsertRows commits rows.
func (s *Store) InsertRows(rows ...outbox.Row) { s.Insert(rows...) }

// Conform is what the relay relies on, asserted through the interface alone. open
// returns an empty database with 8 partitions.
func Conform(t *testing.T, open func(t *testing.T) Database) {
	for name, test := range map[string]func(*conforming){
		"members live by their leases":                 (*conforming).leases,
		"a poll tells who is there":                    (*conforming).poll,
		"a reap takes what was in hand":                (*conforming).reap,
		"nobody who is gone takes, claims or settles":  (*conforming).gone,
		"a reap waits for what transactions became of": (*conforming).undecided,
		"a token has the rows of its claim, all":       (*conforming).whole,
		"looks go forward by partition":                (*conforming).looks,
		"a claim reads its rows again":                 (*conforming).claim,
		"a settle is bound to its token":               (*conforming).settle,
		"what fails waits, and is due":                 (*conforming).fails,
		"what is abandoned frees the next":             (*conforming).abandons,
		"a forgotten claim is settled by nobody":       (*conforming).forgets,
	} {
		t.Run(name, func(t *testing.T) {
			c := &conforming{T: t, db: open(t)}
			ids, partitions, err := c.db.Lanes(t.Context(), []string{"default"})
			c.ok(err)
			require.Equal(t, 8, partitions)
			c.lane = ids[0]
			test(c)
		})
	}
}

type conforming struct {
	*testing.T

	db   Database
	lane relay.LaneID
}

func (c *conforming) ok(err error) {
	c.Helper()
	require.NoError(c, err)
}

func (c *conforming) insert(keys ...string) {
	for _, key := range keys {
		c.db.InsertRows(Row("default", "test.thing", key))
	}
}

func (c *conforming) join(lease time.Duration, parts int) relay.MemberID {
	c.Helper()
	ids, err := c.db.Join(c.Context(), "somebody", []relay.Joining{{Lane: c.lane, Target: "default"}}, lease)
	c.ok(err)
	require.Len(c, ids, 1)
	got, err := c.db.Take(c.Context(), ids[0], c.lane, parts)
	c.ok(err)
	require.Len(c, got, parts)
	return ids[0]
}

// rows are all queued rows, by seq.
func (c *conforming) rows() []relay.QueueRow {
	c.Helper()
	var lows []relay.PartLow
	for p := range 8 {
		lows = append(lows, relay.PartLow{Part: p})
	}
	rows, err := c.db.Look(c.Context(), c.lane, lows, 100)
	c.ok(err)
	return rows
}

func refs(rows []relay.QueueRow) (all []relay.RowRef) {
	for _, row := range rows {
		all = append(all, relay.RowRef{Part: row.Part, Seq: row.Seq, Key: row.Key})
	}
	return all
}

func (c *conforming) claims(m relay.MemberID, n int64, rows []relay.QueueRow) relay.Claim {
	c.Helper()
	claim, err := c.db.Claim(c.Context(), relay.ClaimRequest{Member: m, Lane: c.lane, N: n, Rows: refs(rows)})
	c.ok(err)
	return claim
}

func (c *conforming) settles(s relay.Settlement) bool {
	c.Helper()
	s.Lane = c.lane
	known, err := c.db.Settle(c.Context(), s)
	c.ok(err)
	return known
}

func (c *conforming) polled() relay.PolledLane {
	c.Helper()
	p, err := c.db.Poll(c.Context(), []relay.LaneID{c.lane})
	c.ok(err)
	require.Len(c, p.Lanes, 1)
	return p.Lanes[0]
}

func (c *conforming) leases() {
	a, b := c.join(time.Minute, 5), c.join(time.Minute, 3)
	renewed, err := c.db.Renew(c.Context(), []relay.Renewal{{Member: a, Target: "default", Healthy: true}, {Member: b, Target: "default", Healthy: true}, {Member: b + 1000, Target: "default", Healthy: true}}, time.Minute)
	c.ok(err)
	require.Len(c, renewed, 2, "who isn't there is missing")
	others, err := c.db.Renew(c.Context(), []relay.Renewal{{Member: a, Target: "another", Healthy: true}}, time.Minute)
	c.ok(err)
	require.Empty(c, others, "the number is not this target's")
	for _, r := range renewed {
		require.Len(c, r.Parts, map[relay.MemberID]int{a: 5, b: 3}[r.Member])
		if r.Member == a {
			c.ok(c.db.Release(c.Context(), b, c.lane, r.Parts)) // not b's
		}
	}
	none, err := c.db.Join(c.Context(), "somebody", []relay.Joining{{Lane: c.lane, Target: "another"}}, time.Minute)
	c.ok(err)
	require.Equal(c, []relay.MemberID{0}, none, "the number is not this target's")
	require.Zero(c, c.polled().Free)
	c.ok(c.db.Leave(c.Context(), []relay.MemberID{a}))
	require.Equal(c, 5, c.polled().Free)
	parts, err := c.db.Take(c.Context(), b, c.lane, 2)
	c.ok(err)
	require.Len(c, parts, 2)
	c.ok(c.db.Release(c.Context(), b, c.lane, parts))
	require.Equal(c, 5, c.polled().Free)
}

func (c *conforming) poll() {
	before, err := c.db.Poll(c.Context(), []relay.LaneID{c.lane})
	c.ok(err)
	c.insert("a")
	a, b, d := c.join(time.Minute, 5), c.join(time.Minute, 0), c.join(time.Millisecond, 0)
	_, err = c.db.Renew(c.Context(), []relay.Renewal{{Member: a, Target: "default", Trouble: "it's away"}, {Member: b, Target: "default"}}, time.Minute)
	c.ok(err)
	after, err := c.db.Poll(c.Context(), []relay.LaneID{c.lane})
	c.ok(err)
	require.Greater(c, after.Last, before.Last)
	require.WithinDuration(c, time.Now(), after.Now, time.Hour)
	require.Nil(c, after.Lanes[0].NextDue)
	require.Equal(c, 3, after.Lanes[0].Free)
	by := map[relay.MemberID]relay.MemberState{}
	for _, m := range after.Lanes[0].Members {
		require.Equal(c, "somebody", m.Name)
		by[m.ID] = m
	}
	require.Len(c, by, 3)
	require.Equal(c, 5, by[a].Parts)
	require.False(c, by[a].Healthy || by[a].Trial || by[a].Expired)
	require.True(c, by[b].Trial && !by[b].Healthy)
	require.InDelta(c, time.Minute, by[a].Until.Sub(after.Now), float64(10*time.Second))
	c.expired(d)
	h, err := c.db.Horizon(c.Context())
	c.ok(err)
	require.Equal(c, c.rows()[0].Seq, h.Last)
	require.Empty(c, h.Writers)
}

// expired waits until a member's lease has passed.
func (c *conforming) expired(m relay.MemberID) {
	c.Helper()
	waittest.Until(c, func() bool {
		for _, member := range c.polled().Members {
			if member.ID == m {
				return member.Expired
			}
		}
		return false
	})
}

func (c *conforming) reap() {
	c.insert("a", "a", "b")
	alive, short := c.join(time.Minute, 4), c.join(200*time.Millisecond, 4)
	rows := c.rows()
	// A claim that isn't answered is made again, and its token may be there all the same.
	require.Len(c, c.claims(short, 1, rows[:1]).Rows, 1)
	require.Len(c, c.claims(short, 2, rows[:1]).Rows, 1)
	r, err := c.db.Reap(c.Context(), alive, false)
	c.ok(err)
	require.False(c, r.Done, "it lives")
	c.expired(short)
	r, err = c.db.Reap(c.Context(), short, false)
	c.ok(err)
	require.Equal(c, relay.Reaped{Parts: 4, Rows: 1, Done: true}, r)
	after := c.rows()
	require.Equal(c, rows[0].Losses+1, after[0].Losses, "one, however many tokens have it")
	require.Zero(c, after[1].Losses+after[2].Losses)
	r, err = c.db.Reap(c.Context(), alive, true)
	c.ok(err)
	require.Equal(c, relay.Reaped{Parts: 4, Done: true}, r)
	require.Equal(c, 8, c.polled().Free)
}

func (c *conforming) undecided() {
	const slot = 1 << 48
	c.insert("a", "b", "c", "d")
	m := c.join(time.Minute, 8)
	rows := c.rows()
	c.claims(m, 7, rows[:1])
	c.claims(m, slot+8, []relay.QueueRow{rows[2], rows[1]})
	c.claims(m, 2*slot+9, rows[3:])
	r, err := c.db.Reap(c.Context(), m, false)
	c.ok(err)
	require.Equal(c, relay.Reaped{}, r, "it lives")
	for range 2 { // as often as somebody asks
		r, err = c.db.Reap(c.Context(), m, true)
		c.ok(err)
		require.Equal(c, relay.Reaped{Undecided: []relay.Token{{N: slot + 8, Rows: refs(rows[1:3])}, {N: 2*slot + 9, Rows: refs(rows[3:])}}}, r)
	}
	renewed, err := c.db.Renew(c.Context(), []relay.Renewal{{Member: m, Target: "default", Healthy: true}}, time.Minute)
	c.ok(err)
	require.Empty(c, renewed, "it lives no longer")
	require.False(c, c.claims(m, slot+10, rows).Alive, "it claims nothing more")
	c.ok(c.db.Release(c.Context(), m, c.lane, []int{0}))
	taken, err := c.db.Take(c.Context(), m, c.lane, 1)
	c.ok(err)
	require.Empty(c, taken)
	state := c.polled().Members
	require.Len(c, state, 1)
	require.True(c, state[0].Expired)
	require.Equal(c, 7, state[0].Parts, "what it has stays its own")
	require.True(c, c.settles(relay.Settlement{Member: m, N: slot + 8, Published: refs(rows[1:2])}), "whoever knows may settle")
	r, err = c.db.Finish(c.Context(), m)
	c.ok(err)
	require.Equal(c, relay.Reaped{Parts: 7, Rows: 2, Done: true}, r)
	left := c.rows()
	require.Len(c, left, 3)
	for _, row := range left {
		require.Equal(c, row.Seq != rows[2].Seq, row.Losses == 1, "handed back by the settle")
	}
	require.Empty(c, c.polled().Members)
}

// whole: the mark of a transaction says by their places which of its token's rows are in it, so
// that one which is gone at the claim, or waits, has its place in the reap, too.
func (c *conforming) whole() {
	const slot = 1 << 48
	c.insert("a", "b", "c", "d")
	m := c.join(time.Minute, 8)
	rows := c.rows()
	c.claims(m, 1, rows)
	require.True(c, c.settles(relay.Settlement{
		Member: m, N: 1, Published: refs(rows[:1]),
		Abandoned: []relay.Abandonment{{RowRef: refs(rows)[1], Class: "permanent", Error: "too large", Attempts: 1}},
		Failed:    []relay.Failure{{RowRef: refs(rows)[2], Attempts: 1, DueIn: time.Hour, Class: "transient", Error: "no"}},
	}))
	require.Len(c, c.claims(m, slot+2, rows).Rows, 2)
	r, err := c.db.Reap(c.Context(), m, true)
	c.ok(err)
	require.Len(c, r.Undecided, 1)
	var want, got []int64
	for _, row := range rows {
		want = append(want, row.Seq)
	}
	for _, row := range r.Undecided[0].Rows {
		got = append(got, row.Seq)
	}
	slices.Sort(want)
	require.Equal(c, want, got)
	require.True(c, c.settles(relay.Settlement{Member: m, N: slot + 2, Published: refs(rows[3:])}))
	left := c.rows()
	require.Len(c, left, 1)
	require.Equal(c, rows[2].Seq, left[0].Seq)
	require.True(c, left[0].Waits)
}

func (c *conforming) gone() {
	c.insert("a")
	m := c.join(time.Minute, 8)
	rows := c.rows()
	c.claims(m, 1, rows)
	_, err := c.db.Reap(c.Context(), m, true)
	c.ok(err)
	require.False(c, c.settles(relay.Settlement{Member: m, N: 1, Published: refs(rows)}))
	require.Len(c, c.rows(), 1, "a late settle changes nothing")
	parts, err := c.db.Take(c.Context(), m, c.lane, 8)
	c.ok(err)
	require.Empty(c, parts)
	claim := c.claims(m, 2, rows)
	require.False(c, claim.Alive)
	require.Empty(c, claim.Rows)
}

func (c *conforming) looks() {
	first := Row("default", "test.thing", "p")
	first.Priority = 7
	c.insert("a", "a", "b", "a")
	c.db.InsertRows(first)
	rows := c.rows()
	require.Len(c, rows, 5)
	var a, prior relay.QueueRow
	for _, row := range rows {
		require.False(c, row.Waits)
		require.Positive(c, row.Bytes)
		if row.Class == 1 {
			prior = row
		} else if row.Key == outbox.KeyOf("default", "test.thing", "test::thing", "a") && a.Seq == 0 {
			a = row
		}
	}
	require.Equal(c, outbox.TopicHash("test.thing"), a.Topic)
	behind, err := c.db.Look(c.Context(), c.lane, []relay.PartLow{{Part: a.Part, Low: a.Seq}}, 1)
	c.ok(err)
	require.Len(c, behind, 1)
	require.Greater(c, behind[0].Seq, a.Seq)
	fetched, err := c.db.Fetch(c.Context(), c.lane, a.Key, a.Seq, 2)
	c.ok(err)
	require.Len(c, fetched, 2)
	require.Equal(c, a, fetched[0])
	rest, err := c.db.Fetch(c.Context(), c.lane, a.Key, fetched[1].Seq+1, 100)
	c.ok(err)
	require.Len(c, rest, 1)
	lifted, err := c.db.First(c.Context(), c.lane, []relay.PartLow{{Part: prior.Part}, {Part: (prior.Part + 1) % 8}}, 10)
	c.ok(err)
	require.Equal(c, []relay.QueueRow{prior}, lifted)
}

func (c *conforming) claim() {
	row := Row("default", "", "a")
	row.CorrelationID, row.TenantID = "c", "t"
	c.db.InsertRows(row)
	c.insert("b")
	m := c.join(time.Minute, 8)
	rows := append(c.rows(), relay.QueueRow{Part: 1, Seq: 1 << 40})
	claim := c.claims(m, 1, rows)
	require.True(c, claim.Alive)
	require.Len(c, claim.Rows, 2, "what is gone is left out")
	got := claim.Rows[0]
	require.Less(c, got.Seq, claim.Rows[1].Seq)
	require.Equal(c, row.MessageID, got.MessageID)
	require.Equal(c, row.Payload, got.Payload)
	require.Equal(c, [4]string{"a", "c", "t", "test::thing"}, [4]string{got.PartitionKey, got.CorrelationID, got.TenantID, got.StreamCategory})
	require.Equal(c, outbox.KeyOf("default", outbox.DefaultTopic("test::thing"), "test::thing", "a"), got.KeyHash)
	require.False(c, got.CreatedAt.IsZero())
	require.GreaterOrEqual(c, got.Waited, time.Duration(0))
	require.Less(c, got.Waited, time.Hour)
}
