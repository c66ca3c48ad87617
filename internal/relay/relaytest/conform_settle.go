package relaytest

import (
	"errors"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/internal/waittest"
)

func (c *conforming) settle() {
	c.insert("a", "b", "c")
	m := c.join(time.Minute, 8)
	rows := c.rows()
	c.claims(m, 1, rows)
	require.False(c, c.settles(relay.Settlement{Member: m, N: 2, Published: refs(rows)}), "another token")
	require.True(c, c.settles(relay.Settlement{Member: m, N: 1, Published: refs(rows[:1]), Lost: refs(rows[1:2])}))
	require.False(c, c.settles(relay.Settlement{Member: m, N: 1, Published: refs(rows)}), "once")
	left := c.rows()
	require.Len(c, left, 2)
	require.Equal(c, 1, left[0].Losses)
	c.claims(m, 3, left)
	require.True(c, c.settles(relay.Settlement{Member: m, N: 3}), "handed back")
	require.Equal(c, left, c.rows())
}

func (c *conforming) fails() {
	c.insert("a", "b")
	m := c.join(time.Minute, 8)
	rows := c.rows()
	c.claims(m, 1, rows)
	require.True(c, c.settles(relay.Settlement{Member: m, N: 1, Failed: []relay.Failure{
		{RowRef: refs(rows)[0], Attempts: 1, DueIn: 200 * time.Millisecond, Class: "transient", Error: "no"},
		{RowRef: refs(rows)[1], Attempts: 5, Class: "transient", Error: errors.ErrUnsupported.Error(), Held: true},
	}}))
	after := c.rows()
	require.True(c, after[0].Waits && after[1].Waits)
	require.NotNil(c, c.polled().NextDue)
	var due []relay.DueRow
	waittest.Until(c, func() bool {
		var err error
		due, _, err = c.db.Due(c.Context(), c.lane, []int{0, 1, 2, 3, 4, 5, 6, 7}, relay.DueAt{}, 10)
		c.ok(err)
		return len(due) > 0
	})
	require.Equal(c, []relay.DueRow{{Part: rows[0].Part, Seq: rows[0].Seq, Key: rows[0].Key, Topic: rows[0].Topic}}, due)
	require.LessOrEqual(c, *c.polled().NextDue, time.Duration(0))
	claim := c.claims(m, 2, rows)
	require.Len(c, claim.Rows, 2)
	for _, row := range claim.Rows {
		require.Equal(c, row.Seq == rows[1].Seq, row.Waits)
		require.Equal(c, map[bool]int{true: 5, false: 1}[row.Waits], row.Attempts)
	}
}

func (c *conforming) abandons() {
	c.insert("a", "a")
	m := c.join(time.Minute, 8)
	rows := c.rows()
	c.claims(m, 1, rows[:1])
	require.True(c, c.settles(relay.Settlement{Member: m, N: 1, Abandoned: []relay.Abandonment{{RowRef: refs(rows)[0], Class: "permanent", Error: "too large", Attempts: 1}}}))
	left := c.rows()
	require.Len(c, left, 1)
	require.False(c, left[0].Waits)
	due, next, err := c.db.Due(c.Context(), c.lane, []int{rows[0].Part}, relay.DueAt{}, 10)
	c.ok(err)
	require.Len(c, due, 1)
	require.Equal(c, left[0].Seq, due[0].Seq)
	require.Zero(c, next)
}

func (c *conforming) forgets() {
	c.insert("a")
	m := c.join(time.Minute, 8)
	rows := c.rows()
	c.claims(m, 1, rows)
	claim, err := c.db.Claim(c.Context(), relay.ClaimRequest{Member: m, Lane: c.lane, N: 2, Rows: refs(rows), Forget: []int64{1}})
	c.ok(err)
	require.Len(c, claim.Rows, 1)
	require.False(c, c.settles(relay.Settlement{Member: m, N: 1, Published: refs(rows)}))
	require.True(c, c.settles(relay.Settlement{Member: m, N: 2, Published: refs(rows)}))
	require.Empty(c, c.rows())
}
