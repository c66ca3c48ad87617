package doctor

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

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
