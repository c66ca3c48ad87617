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

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/uow/postgres"
)

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
