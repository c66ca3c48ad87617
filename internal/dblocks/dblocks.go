// Package dblocks finds who has sessions of PostgreSQL wait for a table, or for rows.
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

// Wait is a table for whose lock sessions wait, or rows.
type Wait struct {
	Table    string // "": rows that another transaction has, by sessions that use tables of Waybill's
	Sessions int
	Longest  time.Duration // that they wait; of rows: that the transaction is open
	By       string        // who has it, for people: "session 123 (psql, user ann, idle in transaction)"
	Remedy   string        // the statement that ends that one
}

// selectWaits: a lock of a table's index is one of the table. Of a row that another
// transaction has nothing says where it is, but who waits for it has locks of the tables that its own
// transaction uses. Waits for rows end and begin again, as handlers have a timeout: what counts is how long
// the transaction has been open that has them, or has been waited for if this role may not see its session.
// Who is in the way may wait for
// another, and that one is to blame. PostgreSQL 13 doesn't say since when a lock is waited for:
// the statement's start is as good, as none of Waybill's takes long otherwise, but unknown to who may not see
// the session. A prepared transaction has the pid 0.
const selectWaits = `WITH RECURSIVE ours AS (
	SELECT l.pid, l.granted, c.relname
	FROM pg_locks AS l
	LEFT JOIN pg_index AS i ON i.indexrelid = l.relation
	JOIN pg_class AS c ON c.oid = coalesce(i.indrelid, l.relation)
	WHERE l.locktype = 'relation' AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'waybill_migrations'::regclass) AND c.relname IN (?0)
), waits AS MATERIALIZED (
	SELECT l.pid, l.locktype = 'relation' AS whole, coalesce((to_jsonb(l)->>'waitstart')::timestamptz, a.query_start) AS since
	FROM pg_locks AS l
	LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
	WHERE NOT l.granted AND l.locktype IN ('relation', 'transactionid', 'tuple')
), late AS MATERIALIZED (
	SELECT DISTINCT w.pid, CASE WHEN w.whole THEN o.relname ELSE '' END AS relname, w.since
	FROM waits AS w
	JOIN ours AS o ON o.pid = w.pid AND o.granted <> w.whole
	WHERE NOT w.whole OR w.since < clock_timestamp() - ?1 * interval '1 millisecond'
), chain AS (
	SELECT relname, unnest(pg_blocking_pids(pid)) AS pid FROM late
	UNION
	SELECT relname, unnest(pg_blocking_pids(pid)) FROM chain WHERE pid <> 0
), roots AS (
	SELECT c.relname, c.pid, a.application_name, a.usename, a.state, CASE WHEN c.pid = 0 THEN (SELECT min(prepared) FROM pg_prepared_xacts) ELSE a.xact_start END AS began
	FROM chain AS c LEFT JOIN pg_stat_activity AS a ON a.pid = c.pid
	WHERE c.pid = 0 OR cardinality(pg_blocking_pids(c.pid)) = 0
)
SELECT w.relname, w.sessions, extract(epoch FROM clock_timestamp() - CASE WHEN w.relname = '' THEN b.began ELSE w.since END)::float8 AS longest,
	coalesce(b.pid, 0), coalesce(b.application_name, ''), coalesce(b.usename, ''), coalesce(b.state, ''), coalesce(b.others, 0)
FROM (SELECT relname, count(DISTINCT pid) AS sessions, min(since) AS since FROM late GROUP BY relname) AS w
LEFT JOIN LATERAL (
	SELECT r.pid, r.application_name, r.usename, r.state, coalesce(r.began, w.since) AS began, count(*) OVER () - 1 AS others FROM roots AS r
	WHERE r.relname = w.relname AND (r.relname <> '' OR coalesce(r.began, w.since) < clock_timestamp() - ?2 * interval '1 millisecond')
	ORDER BY r.began, r.pid LIMIT 1
) AS b ON true
WHERE w.relname <> '' OR b.began IS NOT NULL
ORDER BY longest DESC`

// Of finds the tables of Waybill for whose lock sessions have waited for a time or longer, whether
// any wait for rows of a transaction that has been open for rows or longer, and who has these. There are
// none on SQLite, which has locks of the whole file.
func Of(ctx context.Context, db bun.IDB, table, rows time.Duration) ([]Wait, error) {
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
	}, bun.List(tables), table.Milliseconds(), rows.Milliseconds())
}

// blocker is who has a lock, and how to end that.
func blocker(pid int, application, user, state string) (by, remedy string) {
	if pid == 0 {
		return "a prepared transaction", "pg_prepared_xacts has it: COMMIT PREPARED or ROLLBACK PREPARED ends it"
	}
	return fmt.Sprintf("session %d (application %q, user %s, %s)", pid, application, user, state), fmt.Sprintf("SELECT pg_terminate_backend(%d) ends it", pid)
}
