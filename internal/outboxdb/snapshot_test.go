package outboxdb_test

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
)

// U-12: while somebody's snapshot stays open the server removes no row that has been deleted
// since it was taken. The statements of a relay read no more for that, whether the bodies of
// published rows are kept or not.
func TestSnapshot_U_12_WhatIsPublishedMeanwhileCostsNothing(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]bool{"kept": false, "removed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := &bench{outboxdbtest.Open(t, outboxdbtest.Pooler(t))} // a snapshot concerns its whole database
			m := b.Join("one", time.Hour, outboxdbtest.Partitions)
			publish := func(times int) (last int64) {
				for range times {
					b.Insert(outboxdbtest.Numbered("k", 100)...)
					w := m.Settlement(m.ClaimAll()...)
					w.Delete = remove
					require.True(t, m.Settle(w))
					last = b.Count("SELECT last_value FROM outbox_messages_seq_seq")
				}
				b.Exec("VACUUM outbox_queue, outbox_messages, outbox_claims, outbox_log")
				return last
			}
			snapshot, err := b.DB.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
			require.NoError(t, err)
			defer func() { require.NoError(t, snapshot.Rollback()) }()
			var n int
			require.NoError(t, snapshot.NewRaw("SELECT count(*) FROM outbox_queue").Scan(t.Context(), &n))
			before := b.stepsFrom(publish(3))
			for step, pages := range b.stepsFrom(publish(27)) {
				require.LessOrEqual(t, pages, before[step]+8, step)
			}
		})
	}
}

// stepsFrom are the pages that each statement reads which a relay sends again and again,
// where it knows all rows to a number.
func (b *bench) stepsFrom(last int64) map[string]int {
	b.T.Helper()
	low := strings.TrimSuffix(strings.Repeat(fmt.Sprintf("%d,", last), outboxdbtest.Partitions), ",")
	got := map[string]int{}
	for _, s := range []planned{
		{"look", 0, []string{"1", "'{0,1,2,3,4,5,6,7}'", "'{" + low + "}'", "100"}},
		{"fetch", 0, []string{"1", "8005", fmt.Sprint(last), "20"}},
		{"due", 0, []string{"1", "'-infinity'", "0", "20"}},
		{"claim", 0, []string{"1", "1000", "'{5,13,21}'"}},
		{"look_and_claim", 0, []string{"1"}},
		{"look_and_claim", 1, []string{"1", "1001", "1", "'{0,1,2,3,4,5,6,7}'", "'{" + low + "}'", "100", "1000000", "500"}},
		{"settle_published", 0, []string{"1", "1000", "1", "'{4,4,4}'", "'{5,13,21}'", "'{4,4,4}'", "true"}},
		{"poll", 0, nil},
		{"poll", 1, []string{"'{1}'"}},
		{"poll", 2, []string{"'{1}'"}},
		{"horizon", 0, nil},
	} {
		tx, err := b.DB.BeginTx(b.T.Context(), nil)
		require.NoError(b.T, err)
		_, err = tx.Tx.ExecContext(b.T.Context(), fmt.Sprintf("PREPARE step AS %s", outboxdb.Postgres(s.step)[s.nth]))
		require.NoError(b.T, err, s.step)
		var plan []string
		require.NoError(b.T, tx.NewRaw("?", bun.Safe(s.explain("step"))).Scan(b.T.Context(), &plan), s.step)
		_, err = tx.Tx.ExecContext(b.T.Context(), "DEALLOCATE step") // of this connection, which a rollback leaves there
		require.NoError(b.T, err)
		require.NoError(b.T, tx.Rollback())
		got[fmt.Sprintf("%s %d", s.step, s.nth)] = pages(strings.Join(plan, "\n"))
	}
	b.T.Log(got)
	return got
}
