package doctor

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dblocks"
	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/internal/rights"
	"github.com/waybill-go/waybill/outbox"
)

func (e *exam) server(ctx context.Context, db bun.IDB) (string, error) {
	var number int
	var version string
	var standby bool
	if err := db.QueryRowContext(ctx, "SELECT current_setting('server_version_num')::int, current_setting('server_version'), pg_is_in_recovery()").Scan(&number, &version, &standby); err != nil {
		return "", err
	}
	if standby {
		e.add(Warning, "", "this is a standby, or a server that is being recovered: programs that are led here can write and publish nothing", "lead them to the primary, and examine that one")
	}
	if number < e.limits.version {
		e.add(Critical, "", "PostgreSQL "+version+" is older than what Waybill is made for", fmt.Sprintf("upgrade to %d or a newer one", e.limits.version/10000))
	}
	version = "PostgreSQL " + version
	if schema, there, err := migrate.Schema(ctx, db); err == nil && there && schema != "public" {
		return version + ", schema " + schema + ": before a remedy, SET search_path TO " + schema, nil
	}
	return version, nil
}

func (e *exam) clock(ctx context.Context, db bun.IDB) (string, error) {
	begin := e.limits.now()
	var there time.Time
	if err := db.QueryRowContext(ctx, "SELECT clock_timestamp()").Scan(&there); err != nil {
		return "", err
	}
	trip := e.limits.now().Sub(begin)
	off := there.Sub(begin.Add(trip / 2))
	if off.Abs()-trip/2 > e.limits.clock {
		e.add(Warning, "", fmt.Sprintf("the database's clock is %v off this machine's: leases don't mind, but timers that are set here ring so much too early or late, deadlines of commands are off, and times of events, logs and traces can't be compared", off.Round(time.Millisecond)),
			"keep both in step with NTP or chrony")
	}
	return fmt.Sprintf("the clocks are %v apart", off.Round(time.Millisecond)), nil
}

func (e *exam) settings(ctx context.Context, db bun.IDB) (string, error) {
	var fsync, pages, commit, idle, readOnly string
	if err := db.QueryRowContext(ctx, "SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'), current_setting('idle_in_transaction_session_timeout'),"+
		" (SELECT CASE WHEN setting = 'on' THEN source ELSE '' END FROM pg_settings WHERE name = 'default_transaction_read_only')").
		Scan(&fsync, &pages, &commit, &idle, &readOnly); err != nil {
		return "", err
	}
	// A role that only looks may be made so.
	if readOnly != "" && !strings.Contains(readOnly, "user") && readOnly != "client" {
		e.add(Critical, "default_transaction_read_only", "it is on: nothing can be written or published. Some services set it when their disk is nearly full",
			"see why it was set, and make room; then ALTER SYSTEM or ALTER DATABASE … RESET default_transaction_read_only, and reload")
	}
	if fsync == "off" {
		e.add(Critical, "fsync", "it is off: a crash of the machine can destroy the database", "ALTER SYSTEM SET fsync = on, and reload")
	}
	if pages == "off" {
		e.add(Critical, "full_page_writes", "it is off: a crash of the machine can leave pages half written", "ALTER SYSTEM SET full_page_writes = on, and reload")
	}
	if commit == "off" {
		e.add(Warning, "synchronous_commit", "it is off for this role: a crash can undo commits whose events were published", "ALTER ROLE … SET synchronous_commit = on")
	}
	if idle == "0" {
		e.add(Warning, "idle_in_transaction_session_timeout", "it is 0: a forgotten session keeps dead rows and locks for ever", "ALTER SYSTEM SET idle_in_transaction_session_timeout = '5min', and reload; longer where something needs it")
	}
	return "commits are on the disk when they return, and forgotten sessions end", nil
}

func (e *exam) checkpoints(ctx context.Context, db bun.IDB) (string, error) {
	from := "checkpoints_timed, checkpoints_req, stats_reset FROM pg_stat_bgwriter"
	var version int
	if err := db.QueryRowContext(ctx, "SELECT current_setting('server_version_num')::int").Scan(&version); err != nil {
		return "", err
	}
	if version >= 17_00_00 {
		from = "num_timed, num_requested, stats_reset FROM pg_stat_checkpointer"
	}
	var timed, requested int64
	var since, timeout float64
	var size string
	err := db.QueryRowContext(ctx, "SELECT c.timed, c.requested, extract(epoch FROM clock_timestamp() - c.since)::float8,"+
		" extract(epoch FROM current_setting('checkpoint_timeout')::interval)::float8, current_setting('max_wal_size')"+
		" FROM (SELECT "+strings.Replace(from, "stats_reset FROM", "coalesce(stats_reset, pg_postmaster_start_time()) FROM", 1)+") AS c (timed, requested, since)").
		Scan(&timed, &requested, &since, &timeout, &size)
	if err != nil {
		return "", err
	}
	if requested >= e.limits.checkpoints && requested > timed && since/float64(requested) < timeout {
		e.add(Warning, "max_wal_size", fmt.Sprintf("of %d checkpoints %d did not come by checkpoint_timeout, on average one in %v: max_wal_size, %s, is small, and commits wait while the disk is flushed",
			timed+requested, requested, seconds(since/float64(requested)), size), "raise max_wal_size (ALTER SYSTEM, and reload) until checkpoints come by time, then SELECT pg_stat_reset_shared('"+map[bool]string{true: "checkpointer", false: "bgwriter"}[version >= 17_00_00]+"')")
	}
	return fmt.Sprintf("%d of %d checkpoints were not due by time", requested, timed+requested), nil
}

var vacuumOff = regexp.MustCompile(`autovacuum_enabled=(false|off|no|0)`)

// vacuum looks for dead rows that pile up.
func (e *exam) vacuum(ctx context.Context, db bun.IDB) (string, error) {
	var on, counts string
	if err := db.QueryRowContext(ctx, "SELECT current_setting('autovacuum'), current_setting('track_counts')").Scan(&on, &counts); err != nil {
		return "", err
	}
	if on == "off" || counts == "off" {
		e.add(Critical, "autovacuum", "autovacuum is "+on+", and track_counts, which it needs, is "+counts+": dead rows are never removed, and claims pass them all", "ALTER SYSTEM SET autovacuum = on and track_counts = on, and reload")
	}
	var names []string
	for _, s := range rights.Features() {
		of, err := expected(s, db.Dialect())
		if err != nil {
			return "", err
		}
		for _, o := range of {
			if o.kind == "table" {
				names = append(names, "to_regclass("+migrate.Quote(o.name)+")")
			}
		}
	}
	err := dbrows.Each(ctx, db, "SELECT s.relname, s.n_live_tup, s.n_dead_tup, greatest(s.last_autovacuum, s.last_vacuum), coalesce(c.reloptions::text, '')"+
		" FROM pg_stat_user_tables AS s JOIN pg_class AS c ON c.oid = s.relid WHERE s.relid IN ("+strings.Join(names, ", ")+") ORDER BY s.relname",
		func(scan func(...any) error) error {
			var table, options string
			var live, dead int64
			var last dbtime.Time
			if err := scan(&table, &live, &dead, &last, &options); err != nil {
				return err
			}
			if vacuumOff.MatchString(options) {
				e.add(Critical, "table "+table, "autovacuum is off for it: dead rows are never removed", "ALTER TABLE "+table+" RESET (autovacuum_enabled)")
			}
			if dead >= e.limits.dead && dead > live/5 {
				at := "never"
				if last.Valid {
					at = "last at " + last.Time.Format(time.RFC3339)
				}
				e.add(Warning, "table "+table, fmt.Sprintf("%d dead rows beside %d living ones; it was vacuumed %s", dead, live, at),
					"see the check transactions for what keeps them; then VACUUM "+table+", and more or faster autovacuum workers (autovacuum_max_workers, autovacuum_vacuum_cost_limit)")
			}
			return nil
		})
	return "autovacuum is on, and keeps up", err
}

// transactions looks for what keeps dead rows: as long as it may still see them,
// nobody can remove them.
func (e *exam) transactions(ctx context.Context, db bun.IDB) (string, error) {
	var role string
	var sees bool
	if err := db.QueryRowContext(ctx, "SELECT current_user, pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')").Scan(&role, &sees); err != nil {
		return "", err
	}
	for _, look := range []func(context.Context, bun.IDB) error{e.openTransactions, e.preparedTransactions, e.slots, e.standbys} {
		if err := look(ctx, db); err != nil {
			return "", err
		}
	}
	fine := "nothing keeps dead rows for long"
	if !sees {
		fine += ", as far as role " + role + " can see: GRANT pg_monitor TO " + role + " shows other roles' sessions, too"
	}
	return fine, nil
}

// locks are those of whole tables, and of rows, that sessions wait for.
func (e *exam) locks(ctx context.Context, db bun.IDB) (string, error) {
	waits, err := dblocks.Of(ctx, db, e.limits.lock, e.limits.rows)
	for _, w := range waits {
		if w.Table == "" {
			e.add(Warning, "rows", fmt.Sprintf("sessions that wait for rows of other transactions: %d; one has been open for %v: that of %s", w.Sessions, w.Longest.Round(time.Second), w.By),
				w.Remedy+", if its process hangs; and bound such sessions with idle_in_transaction_session_timeout")
			continue
		}
		e.add(Critical, "table "+w.Table, fmt.Sprintf("sessions that wait for its lock: %d, the first for %v; %s has it", w.Sessions, w.Longest.Round(time.Second), w.By),
			w.Remedy+"; give migrations and maintenance a lock_timeout")
	}
	return "nobody waits for a table, or for long for rows", err
}

const keepsDeadRows = ": no row that has died since then can be removed, and every claim passes them"

func (e *exam) severityOf(age float64) Severity {
	if age >= 12*e.limits.transaction.Seconds() {
		return Critical
	}
	return Warning
}

func (e *exam) openTransactions(ctx context.Context, db bun.IDB) error {
	return dbrows.Each(ctx, db, "SELECT pid, coalesce(usename, ''), coalesce(application_name, ''), coalesce(host(client_addr), 'the server itself'), coalesce(state, ''), xact_start, extract(epoch FROM clock_timestamp() - xact_start)::float8"+
		" FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"+
		" AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL OR state LIKE 'idle in transaction%') AND xact_start < "+e.ago(e.limits.transaction)+" ORDER BY xact_start LIMIT 5",
		func(scan func(...any) error) error {
			var pid int
			var user, application, from, state string
			var start time.Time
			var age float64
			if err := scan(&pid, &user, &application, &from, &state, &start, &age); err != nil {
				return err
			}
			e.add(e.severityOf(age), fmt.Sprintf("pid %d", pid), fmt.Sprintf("a transaction of application %q, user %s, from %s, has been open since %s (%v) and is %s", application, user, from, start.UTC().Format(time.RFC3339), seconds(age), state)+keepsDeadRows,
				fmt.Sprintf("end it: SELECT pg_terminate_backend(%d); and bound such sessions with idle_in_transaction_session_timeout, reports with statement_timeout", pid))
			return nil
		})
}

func (e *exam) preparedTransactions(ctx context.Context, db bun.IDB) error {
	return dbrows.Each(ctx, db, "SELECT gid, owner, prepared, extract(epoch FROM clock_timestamp() - prepared)::float8 FROM pg_prepared_xacts WHERE database = current_database() AND prepared < "+e.ago(e.limits.transaction)+" ORDER BY prepared LIMIT 5",
		func(scan func(...any) error) error {
			var gid, owner string
			var at time.Time
			var age float64
			if err := scan(&gid, &owner, &at, &age); err != nil {
				return err
			}
			e.add(e.severityOf(age), "prepared transaction "+gid, fmt.Sprintf("user %s prepared it at %s (%v ago) and did not end it", owner, at.UTC().Format(time.RFC3339), seconds(age))+keepsDeadRows,
				"as its transaction manager decides: COMMIT PREPARED "+migrate.Quote(gid)+" or ROLLBACK PREPARED "+migrate.Quote(gid))
			return nil
		})
}

func (e *exam) slots(ctx context.Context, db bun.IDB) error {
	return dbrows.Each(ctx, db, fmt.Sprintf("SELECT slot_name, active, age(xmin) FROM pg_replication_slots WHERE xmin IS NOT NULL AND (NOT active OR age(xmin) > %d) ORDER BY age(xmin) DESC LIMIT 5", e.limits.horizon),
		func(scan func(...any) error) error {
			var name string
			var active bool
			var age int64
			if err := scan(&name, &active, &age); err != nil {
				return err
			}
			state := "nothing is connected to it"
			if active {
				state = "its standby is connected"
			}
			e.add(Warning, "replication slot "+name, fmt.Sprintf("%s, and it keeps the state of %d transactions ago", state, age)+keepsDeadRows,
				"bring the standby back, or if it is gone: SELECT pg_drop_replication_slot("+migrate.Quote(name)+"); run long reports on standbys without hot_standby_feedback")
			return nil
		})
}

func (e *exam) standbys(ctx context.Context, db bun.IDB) error {
	return dbrows.Each(ctx, db, fmt.Sprintf("SELECT pid, coalesce(application_name, ''), age(backend_xmin) FROM pg_stat_activity WHERE backend_type = 'walsender' AND age(backend_xmin) > %d ORDER BY 3 DESC LIMIT 5", e.limits.horizon),
		func(scan func(...any) error) error {
			var pid int
			var application string
			var age int64
			if err := scan(&pid, &application, &age); err != nil {
				return err
			}
			e.add(Warning, fmt.Sprintf("standby %s, pid %d", application, pid), fmt.Sprintf("by hot_standby_feedback it keeps the state of %d transactions ago", age)+keepsDeadRows,
				"end the query that runs on it for long, or turn hot_standby_feedback off there")
			return nil
		})
}

func (e *exam) connections(ctx context.Context, db bun.IDB) (string, error) {
	var used, most int64
	err := db.QueryRowContext(ctx, "SELECT (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'), current_setting('max_connections')::int"+
		" - current_setting('superuser_reserved_connections')::int - coalesce(current_setting('reserved_connections', true), '0')::int").Scan(&used, &most)
	if err != nil {
		return "", err
	}
	if share := float64(used) / float64(most); share >= e.limits.connections {
		severity := Warning
		if share >= 0.95 {
			severity = Critical
		}
		e.add(severity, "", fmt.Sprintf("%d of %d connections are in use: further ones will be refused", used, most), "lower max_conns of the providers or the number of processes, put a pooler in front, or raise max_connections")
	}
	return fmt.Sprintf("%d of %d are in use", used, most), nil
}

// pooler listens as an engine does: through a pooler nothing is heard.
func (e *exam) pooler(ctx context.Context, db bun.IDB) (string, error) {
	var standby bool
	if err := db.QueryRowContext(ctx, "SELECT pg_is_in_recovery()").Scan(&standby); err != nil || standby {
		return "nobody can listen on a standby", err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	heard := false
	err := e.provider.Watch(ctx, func([]outbox.Poke) {
		heard = true
		cancel()
	})
	if !heard {
		e.add(Warning, "", "an engine can't hear of other processes' commits, and finds them by polling: "+err.Error(), "let the provider's listen_dsn lead past the pooler to the server itself, for that one connection")
	}
	return "commits of other processes can be heard of", nil
}
