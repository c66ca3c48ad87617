package outboxdb_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/outbox"
)

// S3-30: a search among published rows asks the view, which reads several tables, for
// those only that fit, and reads none that were stored long before or after the time that
// it asks for. One that a clock which was set back has out of order is found.
func TestFind_S3_30_AmongManyPublishedRows(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(testing.TB) outboxdbtest.Database{"SQLite": outboxdbtest.SQLite, "PostgreSQL": outboxdbtest.PostgreSQL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := &bench{outboxdbtest.Open(t, open(t))}
			fill(b.Bench, 20_000)
			b.published()
			began := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
			if b.SQLite() {
				b.Exec("UPDATE outbox_messages SET created_at = strftime('%Y-%m-%dT%H:%M:%fZ', '2026-01-02', '+' || (10 * seq) || ' seconds')")
			} else {
				b.Exec("UPDATE outbox_messages SET created_at = '2026-01-02 00:00:00Z'::timestamptz + 10 * seq * interval '1 s'")
				b.Exec("VACUUM ANALYZE outbox_messages")
			}
			at := func(seq int) time.Time { return began.Add(time.Duration(seq) * 10 * time.Second) }
			const early, found = 9_800, 10_000
			b.Exec(fmt.Sprintf("UPDATE outbox_messages SET partition_key = 'k-1' WHERE seq IN (%d, %d, %d)", early, found, 19_000))
			b.Exec(fmt.Sprintf("UPDATE outbox_messages SET created_at = (SELECT created_at FROM outbox_messages WHERE seq = %d) WHERE seq = %d", found+100, early))

			for name, search := range map[string]struct {
				filter outbox.Filter
				found  []int64
			}{
				"all":             {outbox.Filter{PartitionKey: "k-1"}, []int64{early, found, 19_000}},
				"of its target":   {outbox.Filter{PartitionKey: "k-1", Target: "default"}, []int64{early, found, 19_000}},
				"of another":      {outbox.Filter{PartitionKey: "k-1", Target: "partner"}, nil},
				"of a time":       {outbox.Filter{PartitionKey: "k-1", From: at(found), Until: at(found + 200)}, []int64{early, found}},
				"until a time":    {outbox.Filter{PartitionKey: "k-1", From: at(found - 200), Until: at(found + 100)}, []int64{found}},
				"from a time":     {outbox.Filter{PartitionKey: "k-1", From: at(18_600)}, []int64{19_000}},
				"before all":      {outbox.Filter{Until: at(-1)}, nil},
				"after all":       {outbox.Filter{From: at(30_000)}, nil},
				"with its errors": {outbox.Filter{Error: "e"}, nil},
			} {
				search.filter.Statuses = []outbox.Status{outbox.Published}
				for _, plan := range b.plans(func(s *outboxdb.Store) {
					rows, err := s.Find(t.Context(), search.filter)
					require.NoError(t, err)
					var seqs []int64
					for _, r := range rows {
						seqs = append(seqs, r.Seq)
					}
					require.Equal(t, search.found, seqs, name)
				}) {
					require.NotRegexp(t, `loops=\d{3,}`, plan, name)
					if !search.filter.From.IsZero() {
						require.NotRegexp(t, `Rows Removed by Filter: ([2-9]\d{3}|\d{5,})`, plan, name)
					}
				}
			}
		})
	}
}

// S3-30: a search in a backlog asks the view only of what fits, too.
func TestFind_S3_30_InABacklog(t *testing.T) {
	t.Parallel()
	b := &bench{outboxdbtest.Open(t, outboxdbtest.PostgreSQL(t))}
	fill(b.Bench, 5_000)
	b.Exec("UPDATE outbox_messages SET partition_key = 'k-1' WHERE seq = 4000")
	b.Exec("VACUUM ANALYZE outbox_messages, outbox_queue")
	for _, plan := range b.plans(func(s *outboxdb.Store) {
		rows, err := s.Find(t.Context(), outbox.Filter{PartitionKey: "k-1", Statuses: []outbox.Status{outbox.Pending, outbox.Failed}})
		require.NoError(t, err)
		require.Len(t, rows, 1)
	}) {
		for line := range strings.SplitSeq(plan, "\n") {
			if !strings.Contains(line, "Nested Loop") && !strings.Contains(line, " on outbox_messages ") {
				require.NotRegexp(t, `loops=\d{3,}`, line, plan)
			}
		}
	}
}
