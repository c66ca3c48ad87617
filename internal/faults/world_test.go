package faults

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/internal/chaos"
	"github.com/waybill-go/waybill/internal/verdict"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

// world is a database and a topic of a test's own, on real servers.
type world struct {
	t        *testing.T
	database string
	dsn      string
	server   *sql.DB // as a superuser, in another database
	db       *sql.DB
	kafka    string // addresses
	prefix   string
	partners []outbox.Target
	units    *uow.Manager
	repo     *repository.Repository[*chaos.Account]
	told     map[string]bool    // ids of what tell published
	gone     []verdict.Delivery // what topics had that were deleted
	lives    map[string]int     // by topic: how often it was deleted

	nodes     []*process
	incidents []verdict.Incident
}

func environment(t *testing.T, name string) string {
	t.Helper()
	value := os.Getenv(name)
	require.NotEmpty(t, value, `%s is not set: run scripts/test, or eval "$(scripts/services up)"`, name)
	return value
}

// newWorld is on the servers that all tests share, with n accounts.
func newWorld(t *testing.T, n int) *world {
	t.Helper()
	return newWorldOn(t, environment(t, "WAYBILL_KAFKA"), n, 1<<20)
}

// newWorldOn is on some Kafka, which takes messages up to a size.
func newWorldOn(t *testing.T, kafka string, n, maxMessageBytes int, partners ...outbox.Target) *world {
	t.Helper()
	return newWorldThrough(t, environment(t, "WAYBILL_POSTGRES"), kafka, n, maxMessageBytes, partners...)
}

// newWorldThrough has all but the test itself come to PostgreSQL through a door.
func newWorldThrough(t *testing.T, door, kafka string, n, maxMessageBytes int, partners ...outbox.Target) *world {
	t.Helper()
	dsn := environment(t, "WAYBILL_POSTGRES")
	name := "faults_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	w := &world{t: t, database: name, kafka: kafka, prefix: name + ".", partners: partners, told: map[string]bool{}, lives: map[string]int{}}
	w.server = connect(t, dsn)
	w.execute("CREATE DATABASE " + name)
	t.Cleanup(func() { w.execute("DROP DATABASE " + name + " WITH (FORCE)") })
	own := func(dsn string) string {
		u, err := url.Parse(dsn)
		require.NoError(t, err)
		u.Path = "/" + name
		return u.String()
	}
	w.dsn = own(door)
	w.db = connect(t, own(dsn))

	p, err := postgres.Open(t.Context(), postgres.Config{DSN: w.dsn, MaxConns: 4})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	w.units, err = uow.New(uow.Config{Domain: branches, Providers: []uow.Provider{p}, External: partners, MaxRetries: 20})
	require.NoError(t, err)
	require.NoError(t, engine.Migrate(t.Context(), w.units))
	_, err = w.db.Exec(chaos.Witness)
	require.NoError(t, err)
	w.repo = repository.New[*chaos.Account](w.units)
	w.createTopic(chaos.AccountTopic, maxMessageBytes)
	t.Cleanup(w.deleteTopics)
	w.save(n, 1)
	return w
}

func connect(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", dsn)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func (w *world) execute(query string) {
	w.t.Helper()
	_, err := w.server.Exec(query)
	require.NoError(w.t, err)
}

// save creates n accounts with a number of events each.
func (w *world) save(n, events int) {
	w.t.Helper()
	require.NoError(w.t, w.units.Do(w.t.Context(), func(ctx context.Context) error {
		for i := range n {
			a := chaos.NewAccount(chaos.AccountID(i))
			a.Move(events, "")
			if err := w.repo.Save(ctx, a); err != nil {
				return err
			}
		}
		return nil
	}))
}

// move changes n accounts rounds times, one event each time: their events stand
// in turn in the outbox.
func (w *world) move(n, rounds int) {
	w.t.Helper()
	for range rounds {
		require.NoError(w.t, w.units.Do(w.t.Context(), func(ctx context.Context) error {
			for i := range n {
				if err := w.update(ctx, i, ""); err != nil {
					return err
				}
			}
			return nil
		}))
	}
}

func (w *world) update(ctx context.Context, i int, note string) error {
	return w.repo.Update(ctx, chaos.AccountID(i), func(a *chaos.Account) error {
		a.Move(1, note)
		return nil
	})
}

// engine starts an engine and waits until it runs.
func (w *world) engine(change ...func(*nodeConfig)) *process {
	w.t.Helper()
	p := w.node(change...)
	p.until("running", 1)
	return p
}

// node starts an engine.
func (w *world) node(change ...func(*nodeConfig)) *process {
	w.t.Helper()
	return w.run(fmt.Sprintf("engine-%d", len(w.nodes)+1), w.config(change...))
}

// config is an engine's. It looks often for work, so that waits are those of
// leases, and gives a busy Kafka most of a lease to answer.
func (w *world) config(change ...func(*nodeConfig)) nodeConfig {
	cfg := nodeConfig{Role: "engine", DSN: w.dsn, Kafka: w.kafka, Prefix: w.prefix, External: w.partners, Outbox: outbox.Config{
		BatchSize: 50, PollInterval: 50 * time.Millisecond, MaxPollInterval: 200 * time.Millisecond, Lease: 5 * time.Second,
		Retry: outbox.RetryPolicy{BaseDelay: 200 * time.Millisecond},
	}}
	for _, c := range change {
		c(&cfg)
	}
	cfg.Outbox.PublishTimeout = cmp.Or(cfg.Outbox.PublishTimeout, cfg.Outbox.Lease*4/5)
	return cfg
}

func (w *world) run(name string, cfg nodeConfig) *process {
	w.t.Helper()
	path, err := program()
	require.NoError(w.t, err)
	p := start(w.t, path, name, cfg)
	w.nodes = append(w.nodes, p)
	return p
}

// writer starts a process of writers.
func (w *world) writer(accounts, writers int, pause time.Duration, change ...func(*nodeConfig)) *process {
	w.t.Helper()
	cfg := nodeConfig{Role: "writer", DSN: w.dsn, External: w.partners, Accounts: accounts, Writers: writers, Pause: pause}
	for _, c := range change {
		c(&cfg)
	}
	return w.run(fmt.Sprintf("writer-%d", len(w.nodes)+1), cfg)
}

// considerate has a writer wait while engines don't keep pace, on a machine that is busy.
func considerate(c *nodeConfig) { c.Backlog = 500 }

// kill, pause and resume also note when they did so, for the checker.

func (w *world) kill(p *process) {
	at := time.Now()
	p.Kill()
	w.note(verdict.Incident{Kind: "kill", PID: p.PID(), From: at, Until: time.Now()})
}

func (w *world) pause(p *process) {
	w.t.Helper()
	w.note(verdict.Incident{Kind: "stop", PID: p.PID(), From: time.Now()})
	p.pause()
}

func (w *world) resume(p *process) {
	w.t.Helper()
	p.resume()
	for i := range w.incidents {
		if in := &w.incidents[i]; in.PID == p.PID() && in.Until.IsZero() {
			in.Until = time.Now()
		}
	}
}

func (w *world) note(i verdict.Incident) { w.incidents = append(w.incidents, i) }

// died notes a kill that a node did itself.
func (w *world) died(p *process) {
	w.t.Helper()
	p.wait()
	require.Equal(w.t, "signal: killed", p.State().String(), p.logged())
	w.note(verdict.Incident{Kind: "kill", PID: p.PID(), From: time.Now().Add(-patience), Until: time.Now()})
}

// count is the answer to SELECT count(*) FROM ….
func (w *world) count(from string, args ...any) (n int) {
	w.t.Helper()
	require.NoError(w.t, w.db.QueryRow("SELECT count(*) FROM "+from, args...).Scan(&n))
	return n
}

// now is the database's time.
func (w *world) now() string {
	w.t.Helper()
	return w.strings("SELECT clock_timestamp()::text")[0]
}

// strings selects one column.
func (w *world) strings(query string, args ...any) (all []string) {
	w.t.Helper()
	rows, err := w.db.Query(query, args...)
	require.NoError(w.t, err)
	defer rows.Close()
	for rows.Next() {
		var v string
		require.NoError(w.t, rows.Scan(&v))
		all = append(all, v)
	}
	require.NoError(w.t, rows.Err())
	return all
}

// drain waits until no row is unfinished.
func (w *world) drain() {
	w.t.Helper()
	waittest.ToZero(w.t, func() int { return w.waiting() }, "rows go on being finished")
}

// check collects what there is to know and has it judged. Only rows that are
// named may be abandoned.
func (w *world) check(mayBeAbandoned ...string) verdict.Report {
	w.t.Helper()
	e := w.evidence()
	e.MayBeAbandoned = mayBeAbandoned
	r := e.Judge()
	w.t.Logf("%s", r)
	require.Empty(w.t, r.Violations)
	return r
}

func (w *world) evidence() verdict.Evidence {
	w.t.Helper()
	e, err := chaos.Collect(context.Background(), w.db)
	require.NoError(w.t, err)
	e.Incidents = w.incidents
	e.Deliveries = w.delivered()
	for _, p := range w.nodes {
		chaos.Heed(&e, p.PID(), []byte(p.logged()), 0)
	}
	return e
}

func (w *world) each(query string, row func(scan func(...any) error) error) {
	w.t.Helper()
	require.NoError(w.t, chaos.Each(context.Background(), w.db, query, row))
}
