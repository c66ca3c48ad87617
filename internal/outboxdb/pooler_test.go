package outboxdb_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
)

// Each step is one message, so that a pooler, which gives every transaction to
// whichever connection is free, changes nothing: also once it has turned preparing off.
func TestPooler_StepsOfSeveralMembersAtOnce(t *testing.T) {
	t.Parallel()
	b := outboxdbtest.Open(t, outboxdbtest.Pooler(t))
	var members []*outboxdbtest.Member
	for i := range 4 {
		members = append(members, b.Join(fmt.Sprint(i), time.Minute, 2))
		b.Insert(outboxdbtest.Numbered(fmt.Sprint(i), 50)...)
	}
	var wg sync.WaitGroup
	errs := make(chan error, 4)
	for _, m := range members {
		wg.Go(func() { errs <- publishAll(t, b, m) })
	}
	wg.Wait()
	for range members {
		require.NoError(t, <-errs)
	}
	require.Zero(t, b.Count("SELECT count(*) FROM outbox_queue"))
	require.EqualValues(t, 200, b.Count("SELECT sum(published) FROM outbox_log"))
	h, err := b.Horizon(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 200, h.Last)
	for _, m := range members {
		r, err := b.Reap(t.Context(), m.ID, true)
		require.NoError(t, err)
		require.Equal(t, relay.Reaped{Parts: 2, Done: true}, r)
	}
}

// publishAll claims and settles ten rows at a time, until there are none.
func publishAll(t *testing.T, b *outboxdbtest.Bench, m *outboxdbtest.Member) error {
	for n := int64(1); ; n++ {
		var lows []relay.PartLow
		for _, p := range m.Parts {
			lows = append(lows, relay.PartLow{Part: p})
		}
		rows, err := b.Look(t.Context(), m.Lane, lows, 10)
		if err != nil || len(rows) == 0 {
			return err
		}
		q := relay.ClaimRequest{Member: m.ID, Lane: m.Lane, N: n}
		for _, r := range rows {
			q.Rows = append(q.Rows, relay.RowRef{Part: r.Part, Seq: r.Seq, Key: r.Key})
		}
		c, err := b.Claim(t.Context(), q)
		if err != nil {
			return err
		}
		w := relay.Settlement{Member: m.ID, Lane: m.Lane, N: n}
		for _, r := range c.Rows {
			w.Published = append(w.Published, r.Ref())
		}
		if _, err := b.Settle(t.Context(), w); err != nil {
			return err
		}
		if _, err := b.Renew(t.Context(), []relay.Renewal{{Member: m.ID, Target: "default", Healthy: true}}, time.Minute); err != nil {
			return err
		}
	}
}

// What isn't durable waits for no disk; what is does, also where the server's setting
// says otherwise. Locks end with a process that stands still.
func TestBegin_Settings(t *testing.T) {
	t.Parallel()
	b := outboxdbtest.Open(t, outboxdbtest.PostgreSQL(t))
	for _, test := range []struct {
		server string
		asked  any
		want   string
	}{{"on", nil, "on"}, {"on", "off", "off"}, {"off", nil, "on"}, {"remote_write", nil, "remote_write"}} {
		tx, err := b.DB.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		_, err = tx.Tx.ExecContext(t.Context(), "SET LOCAL synchronous_commit = "+test.server)
		require.NoError(t, err)
		_, err = tx.Tx.ExecContext(t.Context(), outboxdb.Postgres("begin")[0], test.asked, "auto")
		require.NoError(t, err)
		var commits, lock, idle string
		require.NoError(t, tx.NewRaw("SELECT current_setting('synchronous_commit'), current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout')").
			Scan(t.Context(), &commits, &lock, &idle))
		require.Equal(t, []string{test.want, "5s", "5s"}, []string{commits, lock, idle})
		require.NoError(t, tx.Rollback())
	}
}
