// Package dblocks finds who has sessions of PostgreSQL wait for a table.
package dblocks

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/internal/rights"
)

// Wait is a table for whose lock sessions wait.
type Wait struct {
	Table    string
	Sessions int
	Longest  time.Duration
	By       string // who has it, for people: "session 123 (psql, user ann, idle in transaction)"
	Remedy   string // the statement that ends that one
}

// selectWaits: a lock of a table's index is one of the table. Who is in the way may wait for
// another, and that one is to blame. PostgreSQL 13 doesn't say since when a lock is waited for:
// the statement's start is as good, as none of Waybill's takes long otherwise. A prepared transaction has
// the pid 0.
const selectWaits = `WITH RECURSIVE waits AS MATERIALIZED (
	SELECT l.pid, c.relname, coalesce((to_jsonb(l)->>'waitstart')::timestamptz, a.query_start) AS since
	FROM pg_locks AS l
	LEFT JOIN pg_index AS i ON i.indexrelid = l.relation
	JOIN pg_class AS c ON c.oid = coalesce(i.indrelid, l.relation)
	LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
	WHERE NOT l.granted AND l.locktype = 'relation' AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'waybill_migrations'::regclass) AND c.relname IN (?)
), late AS (
	SELECT * FROM waits WHERE since < clock_timestamp() - ? * interval '1 millisecond'
), chain AS (
	SELECT relname, unnest(pg_blocking_pids(pid)) AS pid FROM late
	UNION
	SELECT relname, unnest(pg_blocking_pids(pid)) FROM chain WHERE pid <> 0
)
SELECT w.relname, w.sessions, w.longest, coalesce(b.pid, 0), coalesce(a.application_name, ''), coalesce(a.usename, ''), coalesce(a.state, ''), coalesce(b.others, 0)
FROM (SELECT relname, count(DISTINCT pid) AS sessions, extract(epoch FROM max(clock_timestamp() - since))::float8 AS longest FROM late GROUP BY relname) AS w
LEFT JOIN LATERAL (
	SELECT min(pid) AS pid, count(*) - 1 AS others FROM chain WHERE relname = w.relname AND (pid = 0 OR cardinality(pg_blocking_pids(pid)) = 0)
) AS b ON true
LEFT JOIN pg_stat_activity AS a ON a.pid = b.pid
ORDER BY w.longest DESC`

// Of finds the tables of Waybill for whose lock sessions have waited for a time or longer, and who
// has it. There are none on SQLite, which has locks of the whole file.
func Of(ctx context.Context, db bun.IDB, atLeast time.Duration) ([]Wait, error) {
	if db.Dialect().Name() != dialect.PG {
		return nil, nil
	}
	var tables []string
	for _, r := range rights.On(rights.Features()) {
		if r.Kind == migrate.Table {
			tables = append(tables, r.Name)
		}
	}
	var all []Wait
	return all, dbrows.Each(ctx, db, selectWaits, func(scan func(...any) error) error {
		var w Wait
		var pid, others int
		var longest float64
		var application, user, state string
		if err := scan(&w.Table, &w.Sessions, &longest, &pid, &application, &user, &state, &others); err != nil {
			return err
		}
		w.Longest = time.Duration(longest * float64(time.Second))
		w.By, w.Remedy = blocker(pid, application, user, state)
		if others > 0 {
			w.By += fmt.Sprintf(", and %d more", others)
		}
		all = append(all, w)
		return nil
	}, bun.List(tables), atLeast.Milliseconds())
}

// blocker is who has a lock, and how to end that.
func blocker(pid int, application, user, state string) (by, remedy string) {
	if pid == 0 {
		return "a prepared transaction", "pg_prepared_xacts has it: COMMIT PREPARED or ROLLBACK PREPARED ends it"
	}
	return fmt.Sprintf("session %d (application %q, user %s, %s)", pid, application, user, state), fmt.Sprintf("SELECT pg_terminate_backend(%d) ends it", pid)
}
