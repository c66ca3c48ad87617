package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/internal/rights"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/sqlite"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		stopServer()
		os.Exit(code)
	}))
}

// patient is a database that is examined.
type patient struct {
	uow.Provider
	limits   limits
	outboxes []string
}

func newPatient(t *testing.T, p uow.Provider) *patient {
	t.Helper()
	require.NoError(t, engine.MigrateProvider(t.Context(), p, 0))
	return &patient{Provider: p, limits: usual}
}

func (p *patient) exec(t *testing.T, statements ...string) {
	t.Helper()
	for _, s := range statements {
		_, err := p.DB().ExecContext(t.Context(), s)
		require.NoError(t, err, s)
	}
}

// examine returns what is not well.
func (p *patient) examine(t *testing.T) (wrong []Finding) {
	t.Helper()
	ran := map[string]bool{}
	for _, f := range examine(t.Context(), p.Provider, p.limits, p.outboxes) {
		ran[f.Check] = true
		require.NotEmpty(t, f.What, "%+v", f)
		if f.Severity == OK {
			require.Empty(t, f.Remedy)
			continue
		}
		require.NotEmpty(t, f.Remedy, "%+v", f)
		wrong = append(wrong, f)
	}
	require.Greater(t, len(ran), 5)
	return wrong
}

// has expects one finding, and no other.
func (p *patient) has(t *testing.T, check string, s Severity, where, what, remedy string) {
	t.Helper()
	wrong := p.examine(t)
	require.Len(t, wrong, 1, "%+v", wrong)
	f := wrong[0]
	require.Equal(t, check, f.Check, "%+v", f)
	require.Equal(t, s, f.Severity, "%+v", f)
	require.Contains(t, f.Where, where)
	require.Contains(t, f.What, what)
	require.Contains(t, f.Remedy, remedy)
}

// each runs a test on a healthy database of each kind, which is examined first.
func each(t *testing.T, test func(t *testing.T, p *patient)) {
	for name, open := range map[string]func(*testing.T) uow.Provider{"sqlite": openSQLite, "postgres": openPostgres} {
		t.Run(name, func(t *testing.T) {
			p := newPatient(t, open(t))
			require.Empty(t, p.examine(t))
			test(t, p)
		})
	}
}

func openSQLite(t *testing.T) uow.Provider {
	p, err := sqlite.Open(t.Context(), sqlite.Config{Path: filepath.Join(t.TempDir(), "a.db")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

type order struct{ domain.Root }

type placed struct{ Note string }

var ordering = domain.MustNew("ordering", domain.Aggregate[*order]("order", domain.Event[placed]()))

// place stores n rows, for the broker default of a context that is known.
func (p *patient) place(t *testing.T, n int) {
	t.Helper()
	units, err := uow.New(uow.Config{Domain: ordering, Providers: []uow.Provider{p.Provider}})
	require.NoError(t, err)
	require.NoError(t, outboxdb.InitTargets(t.Context(), p.DB(), "ordering", outbox.Targets{Broker: "default"}))
	for range n {
		o := &order{Root: domain.NewRoot()}
		o.Raise(placed{})
		require.NoError(t, repository.New[*order](units).Save(t.Context(), o))
	}
}

// bench is the outbox of the patient.
func (p *patient) bench(t *testing.T) *outboxdbtest.Bench {
	return &outboxdbtest.Bench{Store: outboxdb.New(p.DB(), p.Reader()), T: t, DB: p.DB(), As: p.DB()}
}

// processor has all partitions of the broker default.
func (p *patient) processor(t *testing.T) *outboxdbtest.Member {
	t.Helper()
	return p.bench(t).Join("w", time.Hour, outbox.DefaultPartitions)
}

func (p *patient) ago(d time.Duration) string {
	return (&exam{provider: p.Provider}).ago(d)
}

func TestHealthy(t *testing.T) {
	each(t, func(t *testing.T, p *patient) {
		p.place(t, 3)
		m := p.processor(t)
		rows := m.ClaimAll()
		require.Len(t, rows, 3)
		require.Empty(t, p.examine(t), "rows are being published")
		require.True(t, m.Settle(m.Settlement(rows...)))
		require.Empty(t, p.examine(t), "rows were published")
		require.Equal(t, OK, Worst(Examine(t.Context(), p.Provider, nil)))
	})
}

func TestSchema(t *testing.T) {
	each(t, func(t *testing.T, p *patient) {
		p.exec(t, "INSERT INTO waybill_migrations (feature, version, applied_at) VALUES ('subscription', 1000, '2026-01-01')")
		p.has(t, "schema", Critical, "feature subscription", "at version 1000, and this build knows only", "newer build")
		p.exec(t, "DELETE FROM waybill_migrations WHERE feature = 'subscription'")
		p.has(t, "schema", Critical, "table waybill_migrations", "it doesn't say that a migration made what is there: inbox, ", "a restore has left out waybill_migrations")
		p.exec(t, "INSERT INTO waybill_migrations (feature, version, applied_at) VALUES ('subscription', -1, '2026-01-01')")
		p.has(t, "schema", Critical, "feature subscription", "at version -1, and this build needs", "waybill migrate")
	})
}

func TestSchema_NoTables(t *testing.T) {
	for name, open := range map[string]func(*testing.T) uow.Provider{"sqlite": openSQLite, "postgres": openPostgres} {
		t.Run(name, func(t *testing.T) {
			wrong := (&patient{Provider: open(t), limits: usual}).examine(t)
			require.Len(t, wrong, 1, "one sentence for all features: %+v", wrong)
			require.Equal(t, "schema", wrong[0].Check)
			require.Contains(t, wrong[0].What, "none of Waybill's is there")
			require.Contains(t, wrong[0].Remedy, "waybill migrate")
		})
	}
}

// A table of the user's own called as Waybill's view stands in the way of a migration, too.
func TestSchema_SomebodyElsesOutbox(t *testing.T) {
	for name, open := range map[string]func(*testing.T) uow.Provider{"sqlite": openSQLite, "postgres": openPostgres} {
		t.Run(name, func(t *testing.T) {
			p := &patient{Provider: open(t), limits: usual}
			p.exec(t, "CREATE TABLE outbox (id BIGINT PRIMARY KEY)")
			p.has(t, "schema", Critical, "table waybill_migrations", "it doesn't say that a migration made what is there: outbox. Programs are refused", "or your table another name")
		})
	}
}

// Tables that were restored without waybill_migrations are not said to be missing.
func TestSchema_RestoredWithoutTheVersions(t *testing.T) {
	each(t, func(t *testing.T, p *patient) {
		p.exec(t, "DROP TABLE waybill_migrations")
		p.has(t, "schema", Critical, "table waybill_migrations", "it doesn't say that a migration made what is there: outbox_settings, ", "restore the whole backup, or that table as well")
	})
}

func TestSchema_Partitions(t *testing.T) {
	each(t, func(t *testing.T, p *patient) {
		p.exec(t, "DELETE FROM outbox_settings WHERE name = 'partitions'")
		p.has(t, "schema", Critical, "outbox_settings", "partition count is missing", "waybill migrate")
	})
}

// What the migrations make is read out of them; the database has just that.
func TestObjects_AreAllThatIsThere(t *testing.T) {
	each(t, func(t *testing.T, p *patient) {
		e := &exam{provider: p.Provider, current: map[string]bool{}}
		for _, s := range rights.Features() {
			e.current[s.Feature] = true
		}
		want, err := e.wanted(p.DB().Dialect(), rights.Features())
		require.NoError(t, err)
		have, unique, err := e.catalog(t.Context(), p.Reader(), want)
		require.NoError(t, err)
		for _, o := range want {
			require.Contains(t, have, o.kind+" "+o.name)
			delete(have, o.kind+" "+o.name)
			if o.kind == "table" && e.postgres() {
				require.Equal(t, o.keys, unique[o.name], o.name)
			}
		}
		for name := range have {
			require.Regexp(t, "_pkey$|_key$|^index sqlite_autoindex|^table (waybill_migrations|sqlite_sequence)$", name, "the migrations make it, and expected doesn't know it")
		}
	})
}

func TestObjects_Missing(t *testing.T) {
	each(t, func(t *testing.T, p *patient) {
		p.exec(t, "DROP INDEX outbox_queue_held")
		p.has(t, "objects", Critical, "index outbox_queue_held", "missing", "CREATE INDEX ")
		wrong := p.examine(t)
		p.exec(t, wrong[0].Remedy)
		require.Empty(t, p.examine(t), "the remedy helps")

		if p.Reader().Dialect().Name().String() == "sqlite" {
			p.exec(t, "DROP TRIGGER outbox_insert_event")
			p.has(t, "objects", Critical, "trigger outbox_insert_event", "missing", "waybill migrate --print")
		}
	})
	each(t, func(t *testing.T, p *patient) {
		p.exec(t, "DROP VIEW outbox")
		p.has(t, "objects", Critical, "view outbox", "missing", "waybill migrate --print")
	})
	each(t, func(t *testing.T, p *patient) {
		p.exec(t, "DROP TABLE inbox_marks")
		p.has(t, "objects", Critical, "table inbox_marks", "missing", "waybill migrate --print")
	})
	each(t, func(t *testing.T, p *patient) { // its indexes go with it, and come with it
		p.exec(t, "DROP TABLE inbox")
		p.has(t, "objects", Critical, "table inbox", "missing", "waybill migrate --print")
	})
}

// A trigger of somebody's that swallows inserts or deletes, or a rule. One that comes after them can't.
func TestObjects_ThatDropRows(t *testing.T) {
	each(t, func(t *testing.T, p *patient) {
		if p.Reader().Dialect().Name().String() == "sqlite" {
			p.exec(t, "CREATE TRIGGER audit AFTER INSERT ON outbox_messages BEGIN SELECT 1; END")
			require.Empty(t, p.examine(t))
			p.exec(t, "CREATE TRIGGER less BEFORE INSERT ON outbox_messages WHEN NEW.priority < 0 BEGIN SELECT RAISE(IGNORE); END")
			p.has(t, "objects", Warning, "trigger less", "on table outbox_messages, and can drop a row without an error", "DROP TRIGGER less, unless")
			return
		}
		p.exec(t, "CREATE FUNCTION less() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
			"CREATE TRIGGER audit AFTER INSERT ON outbox_messages FOR EACH ROW EXECUTE FUNCTION less()",
			"CREATE TRIGGER off BEFORE INSERT ON outbox_messages FOR EACH ROW EXECUTE FUNCTION less()",
			"ALTER TABLE outbox_messages DISABLE TRIGGER off")
		require.Empty(t, p.examine(t))
		p.exec(t, "CREATE TRIGGER less BEFORE DELETE ON outbox_queue FOR EACH ROW EXECUTE FUNCTION less()")
		p.has(t, "objects", Warning, "trigger less", "on table outbox_queue, and can drop a row without an error", "DROP TRIGGER less ON outbox_queue, unless")
		p.exec(t, "DROP TRIGGER less ON outbox_queue", "CREATE RULE less AS ON INSERT TO outbox_messages DO INSTEAD NOTHING")
		p.has(t, "objects", Warning, "rule less", "on table outbox_messages, and can drop a row without an error", "DROP RULE less ON outbox_messages, unless")
	})
}

func TestLanes(t *testing.T) {
	each(t, func(t *testing.T, p *patient) {
		p.place(t, 2)
		p.has(t, "lanes", Warning, "target broker default", "2 rows wait, the oldest for ", "start an engine")
		p.exec(t, "UPDATE outbox_messages SET created_at = "+p.ago(time.Hour))
		p.has(t, "lanes", Critical, "target broker default", "2 rows wait, the oldest for 1h0m", "start an engine")
		p.processor(t)
		require.Empty(t, p.examine(t))
		p.exec(t, "UPDATE outbox_members SET until = "+p.ago(time.Second))
		p.has(t, "lanes", Critical, "target broker default", "no process holds a lease", "start an engine")
	})
}

// Processes that are there and don't reach the broker publish nothing either.
func TestLanes_NoProcessReachesTheBroker(t *testing.T) {
	each(t, func(t *testing.T, p *patient) {
		p.place(t, 2)
		one, other := p.bench(t).Join("w1", time.Hour, 64), p.bench(t).Join("w2", time.Hour, 64)
		renew := func(m *outboxdbtest.Member, healthy bool, trouble string) {
			_, err := m.Store.Renew(t.Context(), []relay.Renewal{{Member: m.ID, Target: "default", Healthy: healthy, Trouble: trouble}}, time.Hour)
			require.NoError(t, err)
		}
		renew(one, false, "connection refused")
		renew(other, true, "")
		require.Empty(t, p.examine(t))
		renew(other, false, "connection refused")
		p.has(t, "lanes", Warning, "target broker default", "none of the processes that have this broker (2) can publish to it: connection refused", "`waybill doctor --kafka`")
		p.exec(t, "UPDATE outbox_messages SET created_at = "+p.ago(time.Hour))
		p.has(t, "lanes", Critical, "target broker default", "2 rows wait, the oldest for 1h0m", "continue by themselves")
	})
}

// Partitions that nobody takes, though there is somebody. One that changes hands is
// nobody's, too, but its rows don't wait for long.
func TestLanes_PartitionsWithoutAnOwner(t *testing.T) {
	each(t, func(t *testing.T, p *patient) {
		p.place(t, 1)
		p.processor(t)
		p.exec(t, "UPDATE outbox_partitions SET owner = NULL")
		require.Empty(t, p.examine(t))
		p.exec(t, "UPDATE outbox_messages SET created_at = "+p.ago(time.Hour))
		p.has(t, "lanes", Critical, "target broker default", "rows wait in 1 partition without an owner, the oldest for 1h0m", "/readyz")
	})
}

// What no process can take.
func TestLanes_PartitionsWithoutARow(t *testing.T) {
	each(t, func(t *testing.T, p *patient) {
		p.place(t, 1)
		p.processor(t)
		p.exec(t, "DELETE FROM outbox_partitions WHERE part < 5")
		p.has(t, "lanes", Critical, "target broker default", "5 of 64 partitions have no row in outbox_partitions", "makes them again when a lease has passed")
	})
}

// What has a number that outbox_lanes has no name for any more is said, and the remedy makes it
// the broker's again.
func TestLanes_RowsOfANumberWithoutAName(t *testing.T) {
	each(t, func(t *testing.T, p *patient) {
		p.place(t, 2)
		p.exec(t, "DELETE FROM outbox_lanes")
		p.has(t, "lanes", Critical, "lane 1", "2 rows wait, the first with seq 1, for a target broker whose name isn't in outbox_lanes any more", "UPDATE outbox_queue SET lane = N WHERE lane = 1")
		stats, err := p.bench(t).Stats(t.Context())
		require.NoError(t, err)
		var nameless []string
		for target, s := range stats {
			if outboxdb.Nameless(target) && s.Counts[outbox.Pending] == 2 && *s.OldestPending >= 0 {
				nameless = append(nameless, target)
			}
		}
		require.Equal(t, []string{"lane 1, not in outbox_lanes"}, nameless, "who asks for numbers sees the rows, too")

		p.exec(t, "INSERT INTO outbox_lanes (target) VALUES ('default')")
		n := "(SELECT id FROM outbox_lanes WHERE target = 'default') WHERE lane = 1"
		p.exec(t, "UPDATE outbox_messages SET lane = "+n, "UPDATE outbox_queue SET lane = "+n, "UPDATE outbox_abandoned SET lane = "+n, "UPDATE outbox_log SET lane = "+n)
		p.processor(t)
		require.Empty(t, p.examine(t))
	})
}

// One name of a broker means the same one in all processes.
func TestLanes_ProcessesThatPublishToDifferentBrokers(t *testing.T) {
	each(t, func(t *testing.T, p *patient) {
		for _, prefix := range []string{"shop.", "shop-2."} {
			m := p.bench(t).Join("of "+prefix, time.Hour, 32)
			_, err := m.Store.Renew(t.Context(), []relay.Renewal{{Member: m.ID, Target: "default", Healthy: true, Broker: outbox.BrokerIdentity{System: "nats", TopicPrefix: prefix}}}, time.Hour)
			require.NoError(t, err)
		}
		p.has(t, "lanes", Critical, "target broker default", "different brokers: nats, topic_prefix shop. (of shop.); nats, topic_prefix shop-2. (of shop-2.)", "same address and topic_prefix")
		p.exec(t, "UPDATE outbox_members SET until = "+p.ago(time.Second)+" WHERE name = 'of shop.'")
		require.NotContains(t, fmt.Sprint(p.examine(t)), "different brokers")
	})
}

// Either all processes publish to a broker in transactions, or none.
func TestLanes_ProcessesOfWhichSomePublishInTransactions(t *testing.T) {
	each(t, func(t *testing.T, p *patient) {
		for _, exact := range []bool{true, false} {
			m := p.bench(t).Join(fmt.Sprint("exact ", exact), time.Hour, 32)
			_, err := m.Store.Renew(t.Context(), []relay.Renewal{{Member: m.ID, Target: "default", Healthy: true, Broker: outbox.BrokerIdentity{System: "kafka", ExactlyOnce: exact}}}, time.Hour)
			require.NoError(t, err)
		}
		p.has(t, "lanes", Warning, "target broker default", "publish in transactions, and others don't, whose messages can come more than once: kafka, no topic_prefix, exactly_once (exact true); kafka, no topic_prefix (exact false)", "same exactly_once")
		p.exec(t, "UPDATE outbox_members SET until = "+p.ago(time.Second)+" WHERE name = 'exact false'")
		require.NotContains(t, fmt.Sprint(p.examine(t)), "in transactions")
	})
}

func TestTargets(t *testing.T) {
	each(t, func(t *testing.T, p *patient) {
		p.place(t, 1)
		p.processor(t)
		p.exec(t, `UPDATE outbox_settings SET value = '{"broker":"other"}' WHERE name = 'targets:ordering'`)
		p.has(t, "targets", Warning, "target broker default", "no context of this database sends to it", "waybill outbox abandon --target default")
		require.NoError(t, outboxdb.SetTargets(t.Context(), p.DB(), "ordering", outbox.Targets{Broker: "default", External: []string{"partner"}, Joining: []string{"partner"}}, "mia"))
		p.has(t, "targets", Warning, "target broker partner", "joining the brokers of context ordering", "waybill outbox backfill partner")
	})
}

func TestLeases(t *testing.T) {
	each(t, func(t *testing.T, p *patient) {
		p.place(t, 1)
		require.Len(t, p.processor(t).ClaimAll(), 1)
		p.exec(t, "UPDATE outbox_members SET until = "+p.ago(time.Minute))
		p.bench(t).Join("x", time.Hour, 1)
		p.has(t, "leases", Warning, "target broker default", "64 partitions and 1 claim still held by w, whose lease expired 1m", "takes them over")
	})
}

func TestHeld(t *testing.T) {
	each(t, func(t *testing.T, p *patient) {
		p.place(t, 1)
		p.processor(t)
		p.exec(t, "UPDATE outbox_queue SET held = TRUE")
		p.has(t, "held", Warning, "target broker default", "1 row given up and held", "waybill outbox list --held")
	})
}

func TestQuarantine(t *testing.T) {
	each(t, func(t *testing.T, p *patient) {
		p.place(t, 1)
		p.processor(t)
		p.exec(t, "UPDATE outbox_queue SET losses = 3")
		p.has(t, "quarantine", Warning, "target broker default", "up to 3 processes in a row died while publishing it", "what ended these processes")
	})
}

func TestRetention(t *testing.T) {
	each(t, func(t *testing.T, p *patient) {
		p.place(t, 2)
		m := p.processor(t)
		rows := m.ClaimAll()
		require.True(t, m.Settle(m.Settlement(rows...)))
		require.NoError(t, m.Store.WriteRetention(t.Context(), outbox.Config{Retention: outbox.Retention{Published: -1}}))
		p.has(t, "retention", Warning, "table outbox_messages", "never expire", "set outbox.retention.published")
		require.NoError(t, m.Store.WriteRetention(t.Context(), outbox.Config{}))
		require.Empty(t, p.examine(t))
		p.exec(t, "UPDATE outbox_log SET at = "+p.ago((7+2)*24*time.Hour))
		p.has(t, "retention", Warning, "table outbox_messages", "2 published rows expired more than 24h0m0s ago", "outbox.retention.every")
	})
}

// What no step leaves behind: after somebody has restored or changed a part.
func TestAccounts(t *testing.T) {
	for what, c := range map[string]struct{ broken, found, remedy string }{
		"a body without a decision":   {"DELETE FROM outbox_queue", "events that are neither queued nor abandoned nor in the log of what was published: 1, such as 1", "keep a copy of it; then queue the events again"},
		"a queued row without a body": {"DELETE FROM outbox_messages", "queued events without a body: 1, such as 1", "Where none has, give the events up"},
		"a token of no member":        {"INSERT INTO outbox_claims (member, n, seqs) VALUES (999, 1, '{}')", "claims of members that are gone, or of partitions that are another one's: 1, such as 999", "DELETE FROM outbox_claims"},
		"a partition of no member":    {"UPDATE outbox_partitions SET owner = 999 WHERE part = 63", "partitions of members that are gone: 1, such as 999", "UPDATE outbox_partitions"},
	} {
		t.Run(what, func(t *testing.T) {
			each(t, func(t *testing.T, p *patient) {
				p.place(t, 1)
				p.processor(t)
				broken := c.broken
				if p.Reader().Dialect().Name().String() == "sqlite" {
					broken = strings.ReplaceAll(broken, "{}", "[]")
				}
				p.exec(t, broken)
				p.has(t, "accounts", Critical, "outbox_", c.found, c.remedy)
			})
		})
	}
}

// The statements of a remedy are what an operator runs: they bring back what can be brought back.
func TestAccounts_TheRemediesStatementsHelp(t *testing.T) {
	for what, c := range map[string]struct {
		broken []string
		queued int
	}{
		"the queue was emptied": {[]string{"DELETE FROM outbox_queue"}, 3},
		"a body was removed":    {[]string{"DELETE FROM outbox_messages WHERE seq = 2"}, 2},
		"both":                  {[]string{"DELETE FROM outbox_queue WHERE seq = 3", "DELETE FROM outbox_messages WHERE seq = 1"}, 2},
	} {
		t.Run(what, func(t *testing.T) {
			each(t, func(t *testing.T, p *patient) {
				p.place(t, 3)
				p.exec(t, c.broken...)
				for _, f := range p.examine(t) {
					if f.Check == "accounts" {
						p.exec(t, regexp.MustCompile(`(INSERT INTO outbox_queue|DELETE)[^;]*`).FindString(f.Remedy))
					}
				}
				m := p.processor(t)
				require.Empty(t, p.examine(t))
				require.Len(t, m.ClaimAll(), c.queued)
			})
		})
	}
}

// A large outbox is looked at for some seconds only, and that is said.
func TestAccounts_TakesItsTimeOnly(t *testing.T) {
	p := newPatient(t, openSQLite(t))
	p.limits.integrity = time.Nanosecond
	require.Empty(t, p.examine(t))
	told := false
	for _, f := range examine(t.Context(), p.Provider, p.limits, p.outboxes) {
		told = told || f.Check == "accounts" && strings.Contains(f.What, "too many events")
	}
	require.True(t, told)
}

// A database that doesn't answer is one finding, at once.
func TestConnection(t *testing.T) {
	for name, open := range map[string]func(*testing.T) uow.Provider{"sqlite": openSQLite, "postgres": openPostgres} {
		t.Run(name, func(t *testing.T) {
			p := open(t)
			require.NoError(t, p.Close())
			all := Examine(t.Context(), p, nil)
			require.Len(t, all, 1)
			require.Equal(t, Critical, all[0].Severity)
			require.Contains(t, all[0].What, "can't be read")
			require.Equal(t, Critical, Worst(all))
		})
	}
}

// with is a provider whose connections are others.
type with struct {
	uow.Provider
	db, reader *bun.DB
}

func (w with) DB() *bun.DB     { return w.db }
func (w with) Reader() *bun.DB { return w.reader }

// A check that can't be made is said, and the others are made all the same.
func TestChecks_OneThatFails(t *testing.T) {
	each(t, func(t *testing.T, p *patient) {
		failing := errors.New("no such luck")
		p.place(t, 1)
		p.processor(t)
		broken := p.Reader().WithQueryHook(hook(func(ctx context.Context, query string) context.Context {
			if strings.Contains(query, "losses >= 2") {
				ctx, cancel := context.WithCancelCause(ctx)
				cancel(failing)
				return ctx
			}
			return ctx
		}))
		p.Provider = with{p.Provider, p.DB(), broken}
		p.has(t, "quarantine", Warning, "", "this could not be checked", "run it again")
	})
}

type hook func(ctx context.Context, query string) context.Context

func (h hook) BeforeQuery(ctx context.Context, e *bun.QueryEvent) context.Context {
	return h(ctx, e.Query)
}

func (hook) AfterQuery(context.Context, *bun.QueryEvent) {}

// The guide has every check, and no other.
func TestGuide_HasEveryCheck(t *testing.T) {
	text, err := os.ReadFile("../../docs/guides/production.md")
	require.NoError(t, err)
	_, table, ok := strings.Cut(string(text), "| check | critical | warning |\n")
	require.True(t, ok)
	var told []string
	for _, row := range regexp.MustCompile("(?m)^\\| (`.*?) \\|").FindAllStringSubmatch(table, -1) {
		for name := range strings.SplitSeq(row[1], ", ") {
			told = append(told, strings.Trim(name, "`"))
		}
	}
	var made []string
	for _, open := range []func(*testing.T) uow.Provider{openSQLite, openPostgres} {
		for _, c := range (&exam{provider: open(t)}).checks() {
			made = append(made, c.name)
		}
	}
	slices.Sort(made)
	slices.Sort(told)
	require.Equal(t, slices.Compact(made), told)
}
