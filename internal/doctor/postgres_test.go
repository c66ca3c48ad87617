package doctor

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/rights"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

// healthyPostgres is a database that was examined.
func healthyPostgres(t *testing.T) *patient {
	t.Helper()
	p := newPatient(t, openPostgres(t))
	require.Empty(t, p.examine(t))
	return p
}

// again is the same database for new connections, which have its new settings.
func (p *patient) again(t *testing.T) *patient {
	t.Helper()
	var name string
	require.NoError(t, p.Reader().NewRaw("SELECT current_database()").Scan(t.Context(), &name))
	return &patient{Provider: open(t, name), limits: p.limits}
}

// system changes a setting of the server until the test ends.
func (p *patient) system(t *testing.T, setting, value string) {
	t.Helper()
	before := ""
	shows := func() (now string) {
		require.NoError(t, p.Reader().NewRaw("SELECT setting FROM pg_settings WHERE name = ?", setting).Scan(context.Background(), &now))
		return now
	}
	before = shows()
	alter := func(set string) {
		for _, s := range []string{"ALTER SYSTEM " + set, "SELECT pg_reload_conf()"} {
			_, err := p.DB().ExecContext(context.Background(), s)
			require.NoError(t, err)
		}
	}
	alter("SET " + setting + " = " + value)
	t.Cleanup(func() {
		alter("RESET " + setting)
		waittest.Until(t, func() bool { return shows() == before })
	})
	waittest.Until(t, func() bool { return shows() != before })
}

func TestVersion(t *testing.T) {
	p := healthyPostgres(t)
	p.limits.version = 990000
	p.has(t, "connection", Critical, "", "is older than", "upgrade to 99")
}

// What a limit of the server keeps from being read has a remedy that helps: neither rights nor time do.
func TestSettings_ALimitOfTheServer(t *testing.T) {
	p := healthyPostgres(t)
	for _, setting := range []string{"work_mem", "temp_file_limit"} {
		_, err := p.DB().ExecContext(t.Context(), "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET "+setting+" = 64', current_database()); END $$")
		require.NoError(t, err)
	}
	wrong := p.again(t).examine(t)
	require.NotEmpty(t, wrong)
	require.Equal(t, "settings", wrong[0].Check)
	for _, f := range wrong {
		require.NotContains(t, []string{"pooler", "checkpoints"}, f.Check, "%+v", f)
		require.Contains(t, f.What, "temp_file_limit")
		require.Contains(t, f.Remedy, "ALTER ROLE … SET work_mem")
		require.NotContains(t, f.Remedy, "GRANT")
	}
}

// Remedies name tables as a session of the programs does.
func TestVersion_SaysInWhichSchemaRemediesWork(t *testing.T) {
	p := healthyPostgres(t)
	says := func(p uow.Provider) string {
		for _, f := range Examine(t.Context(), p, nil) {
			if f.Check == "connection" {
				return f.What
			}
		}
		return ""
	}
	require.NotContains(t, says(p.Provider), "schema")
	var name string
	require.NoError(t, p.Reader().NewRaw("SELECT current_database()").Scan(t.Context(), &name))
	books, err := postgres.Open(t.Context(), postgres.Config{DSN: dsn(name), Schema: "books"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, books.Close()) })
	require.Contains(t, says(books), ", schema books: before a remedy, SET search_path TO books")
}

func TestClock(t *testing.T) {
	p := healthyPostgres(t)
	for _, off := range []time.Duration{2 * time.Second, -time.Hour} {
		p.limits.now = func() time.Time { return time.Now().Add(off) }
		p.has(t, "clock", Warning, "", "off this machine's", "NTP")
	}
	p.limits.now = func() time.Time { return time.Now().Add(500 * time.Millisecond) }
	require.Empty(t, p.examine(t))
}

func TestSettings(t *testing.T) {
	p := healthyPostgres(t)
	for setting, what := range map[string]string{"fsync": "destroy the database", "full_page_writes": "half written"} {
		t.Run(setting, func(t *testing.T) {
			p.system(t, setting, "off")
			p.has(t, "settings", Critical, setting, what, "ALTER SYSTEM SET "+setting+" = on")
		})
	}
	t.Run("default_transaction_read_only", func(t *testing.T) {
		const setting = "default_transaction_read_only"
		p.exec(t, "ALTER ROLE CURRENT_USER SET "+setting+" = on")
		found := p.again(t).examine(t)
		p.exec(t, "ALTER ROLE CURRENT_USER RESET "+setting)
		require.Empty(t, found, "a role that only looks may be made so")
		p.system(t, setting, "on")
		p.has(t, "settings", Critical, setting, "nothing can be written", "RESET "+setting)
	})
	for setting, to := range map[string]string{"synchronous_commit": "off", "idle_in_transaction_session_timeout": "0"} {
		t.Run(setting, func(t *testing.T) {
			var name string
			require.NoError(t, p.Reader().NewRaw("SELECT current_database()").Scan(t.Context(), &name))
			p.exec(t, "ALTER DATABASE "+name+" SET "+setting+" = "+to)
			p.again(t).has(t, "settings", Warning, setting, "it is", setting)
			p.exec(t, "ALTER DATABASE "+name+" RESET "+setting)
		})
	}
}

func TestCheckpoints(t *testing.T) {
	p := healthyPostgres(t)
	for range 12 {
		p.exec(t, "CHECKPOINT")
	}
	waittest.Until(t, func() bool { return len(p.examine(t)) > 0 })
	p.has(t, "checkpoints", Warning, "max_wal_size", "did not come by checkpoint_timeout", "raise max_wal_size")
	p.exec(t, p.examine(t)[0].Remedy[strings.Index(p.examine(t)[0].Remedy, "SELECT pg_stat_reset_shared"):])
	require.Empty(t, p.examine(t))
}

func TestVacuum(t *testing.T) {
	p := healthyPostgres(t)
	p.exec(t, "ALTER TABLE inbox SET (autovacuum_enabled = false)")
	p.has(t, "vacuum", Critical, "table inbox", "autovacuum is off for it", "ALTER TABLE inbox RESET (autovacuum_enabled)")
	p.exec(t, "INSERT INTO inbox (subscription, message_id) SELECT 's', n::text FROM generate_series(1, 20000) AS n", "DELETE FROM inbox")
	var wrong []Finding
	waittest.Until(t, func() bool { wrong = p.examine(t); return len(wrong) == 2 })
	require.Equal(t, Warning, wrong[1].Severity)
	require.Contains(t, wrong[1].What, "dead rows beside")
	require.Contains(t, wrong[1].What, "vacuumed never")
	p.exec(t, "VACUUM inbox", "ALTER TABLE inbox RESET (autovacuum_enabled)")
	waittest.Until(t, func() bool { return len(p.examine(t)) == 0 })
	p.system(t, "autovacuum", "off")
	p.has(t, "vacuum", Critical, "autovacuum", "autovacuum is off", "ALTER SYSTEM SET autovacuum = on")
}

func TestObjects_OfPostgreSQL(t *testing.T) {
	p := healthyPostgres(t)
	t.Run("invalid index", func(t *testing.T) {
		p.place(t, 2)
		m := p.processor(t)
		p.exec(t, "UPDATE outbox_queue SET held = TRUE", "DROP INDEX outbox_queue_held")
		// It ends half way, as one does whose connection is lost.
		_, err := p.DB().ExecContext(t.Context(), "CREATE UNIQUE INDEX CONCURRENTLY outbox_queue_held ON outbox_queue (lane) WHERE held")
		require.ErrorContains(t, err, "could not create unique index")
		p.exec(t, "UPDATE outbox_queue SET held = FALSE")
		rows := m.ClaimAll()
		require.True(t, m.Settle(m.Settlement(rows...)))
		p.has(t, "objects", Critical, "index outbox_queue_held", "it is invalid", "REINDEX INDEX CONCURRENTLY outbox_queue_held")
		p.exec(t, "DROP INDEX outbox_queue_held", "CREATE INDEX outbox_queue_held ON outbox_queue (lane, seq) WHERE held")
		require.Empty(t, p.examine(t))
	})
	t.Run("constraint", func(t *testing.T) {
		p.exec(t, "ALTER TABLE outbox_messages DROP CONSTRAINT outbox_messages_message_id_lane_key")
		p.has(t, "objects", Critical, "table outbox_messages", "of its 2 primary keys and unique constraints there are 1", "waybill migrate --print")
	})
}

// A table of the user's own in a schema that comes first in the search_path was taken for Waybill's
// without its constraints.
func TestObjects_OfAnotherSchema(t *testing.T) {
	p := healthyPostgres(t)
	var name string
	require.NoError(t, p.Reader().NewRaw("SELECT current_database()").Scan(t.Context(), &name))
	p.exec(t, "CREATE SCHEMA mine", "CREATE TABLE mine.documents (id int)", "ALTER DATABASE "+name+" SET search_path = mine, public")
	p.again(t).has(t, "objects", Critical, "table documents", "leads to the one of schema mine, and Waybill's is in schema public", "name schema public in the configuration")
	p.exec(t, "ALTER TABLE mine.documents RENAME TO papers")
	require.Empty(t, p.again(t).examine(t))
}

func TestTransactions(t *testing.T) {
	p := healthyPostgres(t)
	usual := p.limits
	p.limits.transaction = time.Microsecond
	require.Empty(t, p.examine(t))

	t.Run("idle", func(t *testing.T) {
		tx, err := p.again(t).DB().BeginTx(t.Context(), nil)
		require.NoError(t, err)
		_, err = tx.ExecContext(t.Context(), "DELETE FROM inbox")
		require.NoError(t, err)
		var pid int
		require.NoError(t, tx.NewRaw("SELECT pg_backend_pid()").Scan(t.Context(), &pid))
		p.has(t, "transactions", Critical, fmt.Sprintf("pid %d", pid), `application "the doctor", user doctor, from 127.0.0.1, has been open since 20`, fmt.Sprintf("pg_terminate_backend(%d)", pid))
		p.limits.transaction = time.Hour
		require.Empty(t, p.examine(t), "it is young")
		p.limits.transaction = time.Microsecond
		require.NoError(t, tx.Rollback())
	})
	t.Run("running", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		q := p.again(t)
		go func() {
			_, err := q.DB().ExecContext(ctx, "SELECT count(*) FROM inbox, pg_sleep(60)")
			ended <- err
		}()
		waittest.Until(t, func() bool { return len(p.examine(t)) == 1 })
		p.has(t, "transactions", Critical, "pid ", "is active: no row that has died since then can be removed", "statement_timeout")
		cancel()
		require.Error(t, <-ended)
		waittest.Until(t, func() bool { return len(p.examine(t)) == 0 })
	})
	t.Run("prepared", func(t *testing.T) {
		p.exec(t, "BEGIN; DELETE FROM inbox; PREPARE TRANSACTION 'of nobody''s'")
		p.has(t, "transactions", Critical, "prepared transaction of nobody's", "user doctor prepared it at 20", "ROLLBACK PREPARED 'of nobody''s'")
		p.exec(t, "ROLLBACK PREPARED 'of nobody''s'")
		require.Empty(t, p.examine(t))
	})
	t.Run("standby", func(t *testing.T) {
		p.limits = usual
		p.exec(t, "SELECT pg_create_physical_replication_slot('away')")
		require.Empty(t, p.examine(t), "it keeps no rows")
		standby := newStandby(t, p, "away")
		p.limits.horizon = -1
		p.has(t, "transactions", Warning, "replication slot away", "its standby is connected, and it keeps the state of", "pg_drop_replication_slot('away')")
		p.limits = usual
		require.Empty(t, p.examine(t), "it keeps little")
		require.NoError(t, standby.Close(t.Context()))
		waittest.Until(t, func() bool { return len(p.examine(t)) == 1 })
		p.has(t, "transactions", Warning, "replication slot away", "nothing is connected to it", "pg_drop_replication_slot('away')")
		p.exec(t, "SELECT pg_drop_replication_slot('away')")

		standby = newStandby(t, p, "")
		p.limits.horizon = -1
		p.has(t, "transactions", Warning, "standby the doctor, pid", "by hot_standby_feedback it keeps", "hot_standby_feedback off")
		require.NoError(t, standby.Close(t.Context()))
	})
}

// Whoever has locked a table of Waybill's, or rows, is named to those who look why commits hang.
func TestLocks(t *testing.T) {
	p := healthyPostgres(t)
	p.limits.lock, p.limits.rows = time.Microsecond, time.Microsecond
	require.Empty(t, p.examine(t))
	waits := func(t *testing.T, statement string) (end func()) {
		ended := make(chan struct{})
		ctx, cancel := context.WithCancel(context.Background())
		q := p.again(t)
		go func() {
			defer close(ended)
			_, _ = q.DB().ExecContext(ctx, statement)
		}()
		waittest.Until(t, func() bool { return len(p.examine(t)) == 1 })
		return func() {
			cancel()
			<-ended
			waittest.Until(t, func() bool { return len(p.examine(t)) == 0 })
		}
	}
	t.Run("session", func(t *testing.T) {
		tx, err := p.again(t).DB().BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, tx.Rollback()) }()
		var pid int
		require.NoError(t, tx.NewRaw("SELECT pg_backend_pid()").Scan(t.Context(), &pid))
		_, err = tx.ExecContext(t.Context(), "LOCK TABLE document_unique")
		require.NoError(t, err)
		defer waits(t, "SELECT FROM document_unique")()
		p.has(t, "locks", Critical, "table document_unique", fmt.Sprintf(`s; session %d (application "the doctor", user doctor, idle in transaction) has it`, pid),
			fmt.Sprintf("SELECT pg_terminate_backend(%d) ends it; give migrations and maintenance a lock_timeout", pid))
	})
	t.Run("rows", func(t *testing.T) {
		tx, err := p.again(t).DB().BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, tx.Rollback()) }()
		claim := "INSERT INTO inbox (subscription, message_id) VALUES ('a', 'b')"
		var pid int
		require.NoError(t, tx.NewRaw("SELECT pg_backend_pid()").Scan(t.Context(), &pid))
		_, err = tx.ExecContext(t.Context(), claim)
		require.NoError(t, err)
		defer waits(t, claim)()
		p.has(t, "locks", Warning, "rows", fmt.Sprintf(`s: that of session %d (application "the doctor", user doctor, idle in transaction)`, pid),
			fmt.Sprintf("SELECT pg_terminate_backend(%d) ends it, if its process hangs", pid))
	})
	t.Run("prepared", func(t *testing.T) {
		p.exec(t, "BEGIN; LOCK TABLE document_unique; PREPARE TRANSACTION 'forgotten'")
		defer p.exec(t, "ROLLBACK PREPARED 'forgotten'")
		defer waits(t, "SELECT FROM document_unique")()
		p.has(t, "locks", Critical, "table document_unique", "a prepared transaction has it", "pg_prepared_xacts has it: COMMIT PREPARED or ROLLBACK PREPARED ends it")
	})
}

// newStandby follows the server as one with hot_standby_feedback does, by a slot
// if there is one.
func newStandby(t *testing.T, p *patient, slot string) *pgconn.PgConn {
	t.Helper()
	conn, err := pgconn.Connect(t.Context(), dsn("postgres")+"&replication=true")
	require.NoError(t, err)
	var at string
	require.NoError(t, p.Reader().NewRaw("SELECT pg_current_wal_flush_lsn()::text").Scan(t.Context(), &at))
	var xid int64
	require.NoError(t, p.Reader().NewRaw("SELECT pg_current_xact_id()::text::bigint").Scan(t.Context(), &xid))
	if slot != "" {
		slot = "SLOT " + slot
	}
	f := conn.Frontend()
	f.Send(&pgproto3.Query{String: "START_REPLICATION " + slot + " PHYSICAL " + at})
	require.NoError(t, f.Flush())
	for {
		m, err := conn.ReceiveMessage(t.Context())
		require.NoError(t, err)
		if _, ok := m.(*pgproto3.CopyBothResponse); ok {
			break
		}
	}
	feedback := make([]byte, 25)
	feedback[0] = 'h'
	binary.BigEndian.PutUint32(feedback[9:], uint32(xid)) // xmin; the epoch behind it is 0
	f.Send(&pgproto3.CopyData{Data: feedback})
	require.NoError(t, f.Flush())
	waittest.Until(t, func() bool {
		var n int
		err := p.Reader().NewRaw("SELECT (SELECT count(*) FROM pg_replication_slots WHERE xmin IS NOT NULL) + (SELECT count(*) FROM pg_stat_replication WHERE backend_xmin IS NOT NULL)").Scan(t.Context(), &n)
		return err == nil && n > 0
	})
	return conn
}

// That a role may not read the settings says nothing of them: no migration helps.
func TestSchema_OfARoleThatMayNotReadIt(t *testing.T) {
	p := healthyPostgres(t)
	p.exec(t, "CREATE ROLE outsider LOGIN", "GRANT SELECT ON waybill_migrations TO outsider")
	t.Cleanup(func() {
		_, err := p.DB().ExecContext(context.Background(), "DROP OWNED BY outsider; DROP ROLE outsider")
		require.NoError(t, err)
	})
	var name string
	require.NoError(t, p.Reader().NewRaw("SELECT current_database()").Scan(t.Context(), &name))
	outsider, err := postgres.Open(t.Context(), postgres.Config{DSN: strings.Replace(dsn(name), "doctor@", "outsider@", 1)})
	require.NoError(t, err)
	defer func() { require.NoError(t, outsider.Close()) }()
	for _, f := range Examine(t.Context(), outsider, nil) {
		require.NotEqual(t, Critical, f.Severity, "%+v", f)
		if f.Check == "schema" {
			require.Equal(t, "see the check rights; for statistics, GRANT pg_monitor", f.Remedy)
		}
	}
}

// Tables in a schema that a role may not use are as if they weren't there: to migrate is no remedy.
func TestSchema_OfARoleThatMayNotUseIt(t *testing.T) {
	p := healthyPostgres(t)
	p.exec(t, "CREATE ROLE stranger LOGIN", "REVOKE ALL ON SCHEMA public FROM public", "GRANT ALL ON SCHEMA public TO CURRENT_USER")
	t.Cleanup(func() {
		_, err := p.DB().ExecContext(context.Background(), "DROP OWNED BY stranger; DROP ROLE stranger")
		require.NoError(t, err)
	})
	var name string
	require.NoError(t, p.Reader().NewRaw("SELECT current_database()").Scan(t.Context(), &name))
	stranger, err := postgres.Open(t.Context(), postgres.Config{DSN: strings.Replace(dsn(name), "doctor@", "stranger@", 1)})
	require.NoError(t, err)
	defer func() { require.NoError(t, stranger.Close()) }()
	var critical []Finding
	for _, f := range Examine(t.Context(), stranger, nil) {
		if f.Severity == Critical {
			critical = append(critical, f)
		}
	}
	require.Equal(t, []Finding{{
		Check: "schema", Severity: Critical, Where: "tables",
		What:   "schema public has Waybill's tables, and role stranger has no right to use it: nothing of them was looked at",
		Remedy: "let their owner run `waybill migrate --role engine=stranger`, or app= or read= for a program without an engine",
	}}, critical)
}

// A role without rights sees its own sessions only, and is told so.
func TestTransactions_OfARoleThatSeesLittle(t *testing.T) {
	p := healthyPostgres(t)
	p.exec(t, "CREATE ROLE little LOGIN", "GRANT SELECT ON ALL TABLES IN SCHEMA public TO little")
	t.Cleanup(func() {
		_, err := p.DB().ExecContext(context.Background(), "DROP OWNED BY little; DROP ROLE little")
		require.NoError(t, err)
	})
	var name string
	require.NoError(t, p.Reader().NewRaw("SELECT current_database()").Scan(t.Context(), &name))
	little, err := postgres.Open(t.Context(), postgres.Config{DSN: strings.Replace(dsn(name), "doctor@", "little@", 1)})
	require.NoError(t, err)
	defer func() { require.NoError(t, little.Close()) }()
	told := false
	for _, f := range Examine(t.Context(), little, nil) {
		require.Equal(t, OK, f.Severity, "%+v", f)
		told = told || strings.Contains(f.What, "GRANT pg_monitor TO little")
	}
	require.True(t, told)
}

func TestConnections(t *testing.T) {
	p := healthyPostgres(t)
	for range 20 {
		conn, err := pgconn.Connect(t.Context(), dsn("postgres"))
		require.NoError(t, err)
		defer func() { require.NoError(t, conn.Close(context.Background())) }()
	}
	p.has(t, "connections", Warning, "", "of 27 connections are in use", "max_conns")
	for range 4 {
		conn, err := pgconn.Connect(t.Context(), dsn("postgres"))
		require.NoError(t, err)
		defer func() { require.NoError(t, conn.Close(context.Background())) }()
	}
	p.has(t, "connections", Critical, "", "of 27 connections are in use", "max_conns")
}

// Through a pooler an engine hears nothing; past it, it does.
func TestPooler(t *testing.T) {
	through, past := os.Getenv("WAYBILL_PGBOUNCER"), os.Getenv("WAYBILL_POSTGRES")
	require.NotEmpty(t, through, "run scripts/test, or eval \"$(scripts/services up pgbouncer)\"")
	direct, err := postgres.Open(t.Context(), postgres.Config{DSN: past})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, direct.Close()) })
	name := fmt.Sprintf("doctor_pooled_%d", os.Getpid())
	_, err = direct.DB().ExecContext(t.Context(), "CREATE DATABASE "+name)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := direct.DB().ExecContext(context.Background(), "DROP DATABASE "+name+" WITH (FORCE)")
		require.NoError(t, err)
	})
	to := func(dsn string) string {
		u, err := url.Parse(dsn)
		require.NoError(t, err)
		u.Path = "/" + name
		return u.String()
	}
	for listen, want := range map[string]Severity{"": Warning, to(past): OK} {
		p, err := postgres.Open(t.Context(), postgres.Config{DSN: to(through), ListenDSN: listen})
		require.NoError(t, err)
		require.NoError(t, outboxdb.Migrate(t.Context(), p.DB(), 0))
		seen := 0
		for _, f := range Examine(t.Context(), p, nil) { // other findings are of the server, which is others', too
			if f.Check == "pooler" {
				seen++
				require.Equal(t, want, f.Severity, "%+v", f)
				require.Equal(t, want == Warning, strings.Contains(f.Remedy, "listen_dsn"))
			}
		}
		require.Equal(t, 1, seen)
		require.NoError(t, p.Close())
	}
}

// A check is ended by the server itself, and the others are made.
func TestChecks_AreBounded(t *testing.T) {
	p := healthyPostgres(t)
	p.limits.statement = time.Second
	tx, err := p.again(t).DB().BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), "LOCK TABLE outbox_members IN ACCESS EXCLUSIVE MODE")
	require.NoError(t, err)
	var late []string
	for _, f := range p.examine(t) {
		require.Equal(t, Warning, f.Severity, "%+v", f)
		require.Contains(t, f.What, "this could not be checked: ")
		require.Contains(t, f.Remedy, "less busy")
		late = append(late, f.Check)
	}
	require.ElementsMatch(t, []string{"accounts", "lanes", "leases"}, late, "they read the table that is locked")
	require.NoError(t, tx.Rollback())
}

// S1: whoever lacks a right is told which, where, and which grant helps. A role is
// taken for what it may already do, or for what it is said to do.
func TestRights_S1_WhatARoleLacks(t *testing.T) {
	p := healthyPostgres(t)
	for _, name := range []string{"publisher", "writer", "looker"} {
		p.exec(t, "CREATE ROLE "+name+" LOGIN")
		t.Cleanup(func() {
			_, err := p.DB().ExecContext(context.Background(), "DROP OWNED BY "+name+"; DROP ROLE "+name)
			require.NoError(t, err)
		})
	}
	var name string
	require.NoError(t, p.Reader().NewRaw("SELECT current_database()").Scan(t.Context(), &name))
	as := func(role string, roles ...rights.Grantee) (found []Finding) {
		db, err := postgres.Open(t.Context(), postgres.Config{DSN: strings.Replace(dsn(name), "doctor@", role+"@", 1)})
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close()) }()
		for _, f := range Examine(t.Context(), db, nil, roles...) {
			if f.Check == "rights" {
				found = append(found, f)
			}
		}
		return found
	}
	// What the documentation once said is enough.
	p.exec(t, "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO publisher", "GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO publisher")
	require.Equal(t, []Finding{{
		Check: "rights", Severity: Critical, Where: "sequence outbox_messages_seq_seq", What: "role publisher lacks SELECT, which an engine needs",
		Remedy: "as the owner of the tables: GRANT SELECT ON SEQUENCE public.outbox_messages_seq_seq TO publisher",
	}}, as("publisher"))
	p.exec(t, "GRANT SELECT ON SEQUENCE public.outbox_messages_seq_seq TO publisher")
	require.Equal(t, []Finding{{Check: "rights", Severity: OK, What: "role publisher has what an engine needs"}}, as("publisher"))

	p.exec(t, "ALTER TABLE outbox_messages ENABLE ROW LEVEL SECURITY", "CREATE POLICY tenants ON outbox_messages USING (tenant_id = current_setting('app.tenant', true))")
	hidden := []Finding{{
		Check: "rights", Severity: Critical, Where: "table outbox_messages",
		What:   "row security hides rows of it from role publisher: what a role can't see it neither publishes nor handles nor removes, and nothing fails",
		Remedy: "ALTER TABLE outbox_messages DISABLE ROW LEVEL SECURITY, or ALTER ROLE publisher BYPASSRLS; then restart the engines",
	}}
	require.Equal(t, hidden, as("publisher"))
	require.Contains(t, as("doctor", rights.Grantee{Role: migrate.Engine, Name: "publisher"}), hidden[0])
	p.exec(t, "CREATE POLICY engines ON outbox_messages TO publisher USING (true)")
	require.NotContains(t, as("publisher"), hidden[0], "it sees everything")
	p.exec(t, "CREATE POLICY narrow ON outbox_messages AS RESTRICTIVE USING (tenant_id IS NOT NULL)")
	require.Equal(t, hidden, as("publisher"))
	p.exec(t, "ALTER ROLE publisher BYPASSRLS")
	require.NotContains(t, as("publisher"), hidden[0])
	p.exec(t, "ALTER TABLE outbox_messages DISABLE ROW LEVEL SECURITY")

	p.exec(t, "GRANT INSERT ON outbox_queue TO writer")
	found := as("writer")
	require.Greater(t, len(found), 5)
	for _, f := range found {
		require.Equal(t, Critical, f.Severity)
		require.Contains(t, f.What, "role writer lacks")
		require.Contains(t, f.What, "an application that saves")
	}
	require.NoError(t, rights.Give(t.Context(), p.DB(), []rights.Grantee{{Role: migrate.App, Name: "writer"}, {Role: migrate.Read, Name: "looker"}}, rights.Features()))
	require.Equal(t, []Finding{{Check: "rights", Severity: OK, What: "role writer has what an application that saves and consumes needs"}}, as("writer"))
	require.Contains(t, as("looker")[0].What, "role looker has what somebody who only reads needs")
	for _, f := range as("looker", rights.Grantee{Role: migrate.Engine, Name: "writer"}) {
		require.Contains(t, f.What, "which an engine needs")
	}
	p.exec(t, "REVOKE ALL ON inbox FROM looker")
	require.Equal(t, Warning, as("looker")[0].Severity)

	// Who may do everything needs to know that less is enough, and no more.
	found = as("doctor")
	require.Len(t, found, 1)
	require.Equal(t, OK, found[0].Severity)
	require.Contains(t, found[0].What, "role doctor is a superuser; programs need less")
}

// S1: who may only read can examine everything.
func TestRights_S1_ReadIsEnoughForTheDoctor(t *testing.T) {
	p := healthyPostgres(t)
	p.exec(t, "CREATE ROLE reader LOGIN")
	t.Cleanup(func() {
		_, err := p.DB().ExecContext(context.Background(), "DROP OWNED BY reader; DROP ROLE reader")
		require.NoError(t, err)
	})
	require.NoError(t, rights.Give(t.Context(), p.DB(), []rights.Grantee{{Role: migrate.Read, Name: "reader"}}, rights.Features()))
	var name string
	require.NoError(t, p.Reader().NewRaw("SELECT current_database()").Scan(t.Context(), &name))
	db, err := postgres.Open(t.Context(), postgres.Config{DSN: strings.Replace(dsn(name), "doctor@", "reader@", 1)})
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	for _, f := range Examine(t.Context(), db, nil) {
		require.Equal(t, OK, f.Severity, "%+v", f)
	}
}

// Single tables are restored without their sequences, and logical replication leaves them out.
func TestSequences(t *testing.T) {
	p := healthyPostgres(t)
	p.place(t, 3)
	before := p.examine(t)
	p.exec(t, "SELECT setval('outbox_messages_seq_seq', 1, false)")
	after := p.examine(t)
	require.Len(t, after, len(before)+1)
	require.Contains(t, after, Finding{
		Check: "sequences", Severity: Critical, Where: "sequence outbox_messages_seq_seq",
		What:   "it is at 0, and outbox_messages.seq at 3: it was not restored with its table. What gets a number that is there is refused, and what gets a lower one is taken for older than it is",
		Remedy: "with all engines and writers stopped: SELECT setval('outbox_messages_seq_seq', 3)",
	})
}

// Who follows each remedy in turn never sets a sequence back.
func TestSequences_OneOfTwoTables(t *testing.T) {
	p := healthyPostgres(t)
	for _, at := range []struct{ history, events, higher int }{{7, 5, 7}, {8, 9, 9}} {
		p.exec(t, "DELETE FROM history", "DELETE FROM events",
			fmt.Sprintf("INSERT INTO history (position, version, occurred_at, n, message_id, category, id, type, data) VALUES (%d, 1, now(), 1, '%s', 'c', 'i', 't', '{}')", at.history, uuid.New()),
			fmt.Sprintf("INSERT INTO events (position, category, id, version, n, type, occurred_at) VALUES (%d, 'c', 'i', 1, 1, 't', now())", at.events))
		p.has(t, "sequences", Critical, "sequence history_position", fmt.Sprintf(".position at %d", at.higher), fmt.Sprintf("SELECT setval('history_position', %d)", at.higher))
	}
}
