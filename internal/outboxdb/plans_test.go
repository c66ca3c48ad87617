package outboxdb_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
)

// planned is a statement of a step with values, each as SQL.
type planned struct {
	step   string
	nth    int
	values []string
}

// explain is the statement that runs it, prepared under a name, and tells its plan and the
// pages that it reads.
func (p planned) explain(name string) string {
	values := ""
	if len(p.values) > 0 {
		values = "(" + strings.Join(p.values, ", ") + ")"
	}
	return "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) EXECUTE " + name + values
}

// A26, D8, S4-08, F-49, F-50: with a backlog every step reads what it needs by index, also by plans that were made
// while the tables were empty.
func TestPlans_MadeWhileTablesWereEmpty(t *testing.T) {
	t.Parallel()
	for name, counted := range map[string]string{"new": "SELECT 1", "counted": "VACUUM ANALYZE"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lastingPlans(t, counted)
		})
	}
}

func lastingPlans(t *testing.T, counted string) {
	b := outboxdbtest.Open(t, outboxdbtest.PostgreSQL(t))
	for _, table := range []string{"outbox_queue", "outbox_messages", "outbox_log", "outbox_claims"} {
		b.Exec("ALTER TABLE " + table + " SET (autovacuum_enabled = false)") // its ANALYZE would have plans made anew
	}
	b.Join("one", time.Hour, 100)
	if counted != "SELECT 1" {
		counted += " outbox_queue, outbox_messages, outbox_log, outbox_claims"
	}
	b.Exec(counted)
	steps := []planned{
		{"look", 0, []string{"1", "'{0,1,2,3,4,5,6,7}'", "'{100000,100000,100000,100000,100000,100000,100000,100000}'", "100"}},
		{"look", 0, []string{"1", "'{0,1,2,3,4,5,6,7}'", "'{0,0,0,0,0,0,0,0}'", "20"}},
		{"first", 0, []string{"1", "'{0,1,2,3,4,5,6,7}'", "'{0,0,0,0,0,0,0,0}'", "20"}},
		{"fetch", 0, []string{"1", "8005", "0", "20"}},
		{"due", 0, []string{"1", "'-infinity'", "0", "20"}},
		{"claim", 0, []string{"1", "1", "'{5,13,21}'"}},
		{"claim", 1, []string{"1", "1", "1", "'{4,4,4}'", "'{5,13,21}'", "'{4,4,4}'"}},
		{"look_and_claim", 0, []string{"1"}},
		{"look_and_claim", 1, []string{"1", "2", "1", "'{0,1,2,3,4,5,6,7}'", "'{0,0,0,0,0,0,0,0}'", "20", "1000000", "160"}},
		{"look_and_claim", 2, []string{"1", "1"}},
		{"settle_published", 0, []string{"1", "1", "1", "'{4,4,4}'", "'{5,13,21}'", "'{4,4,4}'", "true"}},
		{"settle", 0, []string{
			"1", "1", "1", "'{4}'", "'{5}'", "'{4}'", "true", "'{4}'", "'{13}'", "'{4}'", "'{1}'", "'{1000}'", "'{0}'", "'{unknown}'", "'{x}'",
			"'{4}'", "'{21}'", "'{4}'", "'{4}'", "'{29}'", "'{4}'", "'{1}'", "'{0}'", "'{0}'", "'{permanent}'", "'{x}'",
		}},
		{"reap", 2, []string{"1", "false"}},
		{"reap", 3, []string{"1", "false"}},
		{"poll", 0, nil},
		{"poll", 1, []string{"'{1}'"}},
		{"horizon", 0, nil},
	}
	conn, err := b.DB.Conn(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	run := func(s planned, n int) (plan []string) {
		tx, err := conn.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, tx.Rollback()) }()
		_, err = tx.Tx.ExecContext(t.Context(), outboxdb.Postgres("begin")[0], nil, outboxdb.Plans(s.step))
		require.NoError(t, err)
		if s.step != "claim" || s.nth != 0 {
			_, err = tx.Tx.ExecContext(t.Context(), "INSERT INTO outbox_claims (member, n, seqs) VALUES (1, 1, '{5,13,21,29}')")
			require.NoError(t, err)
		}
		_, err = tx.Tx.ExecContext(t.Context(), "UPDATE outbox_members SET until = 'epoch'")
		require.NoError(t, err)
		err = tx.NewRaw("?", bun.Safe(s.explain(fmt.Sprintf("plan%d", n)))).Scan(t.Context(), &plan)
		require.NoError(t, err, s.step)
		return plan
	}
	for n, s := range steps {
		_, err := conn.Conn.ExecContext(t.Context(), fmt.Sprintf("PREPARE plan%d AS %s", n, outboxdb.Postgres(s.step)[s.nth]))
		require.NoError(t, err, s.step)
		// Nothing is compared that an index could have found, though that would be as cheap by now.
		if plan := strings.Join(run(s, n), "\n"); outboxdb.Plans(s.step) == "force_generic_plan" {
			require.NotContains(t, plan, "Join Filter", s.step)
		}
	}
	fill(b, 100_000)
	for n, s := range steps {
		plan := strings.Join(run(s, n), "\n")
		require.NotRegexp(t, `Seq Scan on outbox_(queue|messages|log|claims)( |$|\n)`, plan, s.step)
		require.Less(t, pages(plan), 400, "%s %d: %s", s.step, s.nth, plan)
		require.NotRegexp(t, `actual rows=\d{4,}`, plan, s.step)
		require.NotRegexp(t, `Rows Removed by Filter: \d{3,}`, plan, s.step)
	}
}

// pages is how many a statement has read, by its plan.
func pages(plan string) (n int) {
	execution, _, _ := strings.Cut(plan, "Planning:")
	m := regexp.MustCompile(`(?m)^ *Buffers: shared(?: hit=(\d+))?(?: read=(\d+))?`).FindStringSubmatch(execution)
	for _, digits := range m[min(1, len(m)):] {
		some, _ := strconv.Atoi("0" + digits)
		n += some
	}
	return n
}

// So it is on SQLite, which plans each time, and has counted nothing.
// Conformance: A26.
func TestPlans_OnSQLiteByIndex(t *testing.T) {
	t.Parallel()
	b := outboxdbtest.Open(t, outboxdbtest.SQLite(t))
	for _, step := range []string{"look", "first", "fetch", "due", "claim", "settle", "settle_published", "reap", "poll", "horizon"} {
		for _, query := range outboxdb.SQLite(step) {
			for _, detail := range planOnSQLite(t, b, query) {
				require.NotRegexp(t, `SCAN (outbox_(queue|messages|log|claims)|[qnbfg])\b`, detail, query)
				if step == "claim" || step == "settle" || step == "settle_published" { // by rows, not by partitions
					require.NotRegexp(t, `SEARCH (q|outbox_queue) .*\(lane=\? AND part=\?\)`, detail, query)
				}
			}
		}
	}
}

func planOnSQLite(t *testing.T, b *outboxdbtest.Bench, query string) (details []string) {
	t.Helper()
	rows, err := b.DB.DB.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+query, make([]any, 26)...)
	require.NoError(t, err, query)
	defer func() { require.NoError(t, rows.Close()) }()
	for rows.Next() {
		var id, parent, unused int
		var detail string
		require.NoError(t, rows.Scan(&id, &parent, &unused, &detail))
		details = append(details, detail)
	}
	require.NoError(t, rows.Err())
	return details
}
