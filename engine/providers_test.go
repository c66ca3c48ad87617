package engine

import (
	"context"
	"database/sql"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/netfault"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

// postgresServer is PostgreSQL, asked by the test itself.
func postgresServer(t *testing.T) (*sql.DB, *url.URL) {
	t.Helper()
	dsn := os.Getenv("WAYBILL_POSTGRES")
	require.NotEmpty(t, dsn, "run scripts/test, or eval \"$(scripts/services up)\"")
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	db, err := sql.Open("pgx", dsn)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db, u
}

// newDatabaseOn creates a database of a test's own, and returns where it is.
func newDatabaseOn(t *testing.T) *url.URL {
	t.Helper()
	db, u := postgresServer(t)
	name := "engine_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	_, err := db.ExecContext(t.Context(), "CREATE DATABASE "+name)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := db.ExecContext(context.Background(), "DROP DATABASE "+name+" WITH (FORCE)")
		require.NoError(t, err)
	})
	u.Path = "/" + name
	return u
}

func openPostgres(t *testing.T, cfg postgres.Config) uow.Provider {
	t.Helper()
	db, err := postgres.Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// behind puts a relay in front of a server.
func behind(t *testing.T, u *url.URL) *netfault.Relay {
	t.Helper()
	x, err := netfault.New(t.Context(), u.Host)
	require.NoError(t, err)
	t.Cleanup(x.Close)
	u.Host = x.Address
	return x
}

// S3-08: one context in three databases, of two kinds: its repositories say which,
// each database has a processor of its own, and the events of all are published.
// One that says nothing more, or is gone, neither stops nor slows the others, and
// goes on by itself.
// Conformance: U-17.
func TestProviders_S3_08_EachOnItsOwn(t *testing.T) {
	far := newDatabaseOn(t)
	x := behind(t, far)
	b := setup(t)
	names := []string{"default", "analytics", "archive"}
	m := units(t, uow.Config{Domain: sales, External: []outbox.Target{{Broker: "partner"}}, Providers: []uow.Provider{
		openPostgres(t, postgres.Config{DSN: newDatabaseOn(t).String()}),
		openSQLite(t, "analytics"),
		openPostgres(t, postgres.Config{Name: "archive", DSN: far.String()}),
	}})
	require.NoError(t, Migrate(t.Context(), m))
	cfg := b.config()
	cfg.Units = []*uow.Manager{m}
	cfg.Outbox = outbox.Config{PollInterval: 100 * time.Millisecond, MaxPollInterval: time.Second, Lease: 9 * time.Second}
	e := b.start(cfg)
	t.Cleanup(x.Mend)
	repos := map[string]*repository.Repository[*sale]{}
	for _, name := range names {
		repos[name] = repository.New[*sale](m, repository.In(name))
	}
	published := func(n int) {
		t.Helper()
		for _, all := range []*memory.Broker{b.main, b.partner} {
			eventually(t, func() bool { return len(all.Messages("sales.sale")) == n })
		}
	}
	for _, name := range names {
		require.NoError(t, repos[name].Save(t.Context(), newSale(1)))
	}
	published(3)
	require.NoError(t, m.Do(t.Context(), func(ctx context.Context) error {
		for _, name := range names {
			if err := repos[name].Save(ctx, newSale(1)); err != nil {
				return err
			}
		}
		return nil
	}, uow.AcrossProviders()))
	published(6)

	eventually(t, func() bool { // published, and written back
		var report outboxReport
		require.Equal(t, 200, get(t, e, "/api/outbox", &report))
		settled := 0
		for _, name := range names {
			for _, target := range []string{"default", "partner"} {
				if lane := report.Providers[name][target]; lane.Counts[outbox.Published] == 2 && len(lane.LeaseOwners) == 1 {
					settled++
				}
			}
		}
		return len(report.Providers) == 3 && settled == 6
	})
	for i, name := range names {
		require.Equal(t, name, e.databases[i].provider.Name())
		for target, external := range map[string]string{"default": "", "partner": "-external"} {
			require.Equal(t, "outbox-processor-"+name+"-to-"+target+external, e.databases[i].status()[target].Name)
		}
	}

	total, said := 6, func(lane, what string) int { return len(b.logs.with("lane=outbox-processor-"+lane+"-to-", what)) }
	for round, fault := range []func(){x.Stall, x.Cut} {
		fault()
		for _, name := range []string{"default", "default", "analytics", "default"} {
			require.NoError(t, repos[name].Save(t.Context(), newSale(1)))
			total++
			published(total) // each as soon as it is committed
		}
		eventually(t, func() bool { return said("archive", "the database does not answer") > 2*round })
		eventually(t, func() bool {
			var h health
			code := get(t, e, "/readyz", &h)
			up := func(name string) bool { ok := h.Components.Providers[name].OK; return ok != nil && *ok }
			return code == 503 && up("default") && up("analytics") && !up("archive")
		})
		x.Mend()
		eventually(t, func() bool { return repos["archive"].Save(t.Context(), newSale(1)) == nil })
		total++
		published(total)
		// Not two in each round: shortly after a line of an outage the next one has none.
		eventually(t, func() bool {
			return said("archive", "the database answers again") == said("archive", "the database does not answer")
		})
	}
	require.Zero(t, said("default", "does not answer"))
	require.Zero(t, said("analytics", "does not answer"))
}

// F-51: however much there is to do, an engine takes no more connections than the
// pool may have, and one that listens: here with two lanes of four workers, a
// subscription, and writers.
func TestProviders_F_51_ConnectionBudget(t *testing.T) {
	u := newDatabaseOn(t)
	u.RawQuery = "application_name=" + strings.TrimPrefix(u.Path, "/")
	b := setup(t)
	m := units(t, uow.Config{Domain: sales, External: []outbox.Target{{Broker: "partner"}}, Providers: []uow.Provider{
		openPostgres(t, postgres.Config{DSN: u.String()}),
	}})
	require.NoError(t, Migrate(t.Context(), m))
	repo := repository.New[*sale](m)
	const parts, each = 20, 50
	unit := func() error {
		return m.Do(t.Context(), func(ctx context.Context) error {
			for range each {
				if err := repo.Save(ctx, newSale(1)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for range parts / 2 {
		require.NoError(t, unit())
	}
	cfg := b.config()
	cfg.Units, cfg.Outbox = []*uow.Manager{m}, outbox.Config{BatchSize: 20, PollInterval: 20 * time.Millisecond, MaxPollInterval: 20 * time.Millisecond}
	cfg.Subscriptions = []subscription.Stream{{
		Name: "noted", Category: "sales::sale",
		Handlers: []subscription.Handler{subscription.On(func(ctx context.Context, _ SaleMade) error {
			_, err := uow.DB(ctx)
			return err
		})},
	}}
	e := b.start(cfg)
	var writers sync.WaitGroup
	for range parts / 2 {
		writers.Go(func() {
			if err := unit(); err != nil {
				t.Error(err)
			}
		})
	}
	db, _ := postgresServer(t)
	most, now := 0, 0
	eventually(t, func() bool {
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1", strings.TrimPrefix(u.Path, "/")).Scan(&now))
		most = max(most, now)
		return len(b.partner.Messages("sales.sale")) == parts*each && e.Subscriptions()["noted"].Handled == parts*each
	})
	writers.Wait()
	t.Logf("at most %d connections", most)
	require.LessOrEqual(t, most, 20+2, "the pool, and one each to listen and to keep leases")
	require.Greater(t, most, 8, "they were counted")
}

// A pool in which a unit of work leaves nothing for what is published is refused.
func TestNew_F_51_APoolThatIsTooSmall(t *testing.T) {
	b := setup(t)
	u := newDatabaseOn(t)
	open := func(n int) error {
		cfg := b.config()
		cfg.Units = []*uow.Manager{units(t, uow.Config{Domain: sales, External: []outbox.Target{{Broker: "partner"}}, Providers: []uow.Provider{
			openPostgres(t, postgres.Config{Name: "books", DSN: u.String(), MaxConns: n}),
		}})}
		_, err := New(cfg)
		return err
	}
	require.ErrorContains(t, open(1), `provider "books" may have 1 connection, and needs at least 2: one to publish beside units of work`)
	require.NoError(t, open(2))
}

// Two connections are enough for two lanes to get everything done, beside writers.
func TestProviders_F_51_TheSmallestPool(t *testing.T) {
	b := setup(t)
	m := units(t, uow.Config{Domain: sales, External: []outbox.Target{{Broker: "partner"}}, Providers: []uow.Provider{
		openPostgres(t, postgres.Config{DSN: newDatabaseOn(t).String(), MaxConns: 2}),
	}})
	require.NoError(t, Migrate(t.Context(), m))
	cfg := b.config()
	cfg.Units, cfg.Outbox.Lease = []*uow.Manager{m}, 30*time.Second
	b.start(cfg)
	repo := repository.New[*sale](m)
	var writers sync.WaitGroup
	for range 8 {
		writers.Go(func() {
			for range 25 {
				if err := repo.Save(t.Context(), newSale(1)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	for _, all := range []*memory.Broker{b.main, b.partner} {
		eventually(t, func() bool { return len(all.Messages("sales.sale")) == 200 })
	}
	require.Empty(t, b.logs.with("level=WARN", "lane="), "leases were renewed in time")
}

// A table of the user's own in a schema that comes first in the search_path let an engine start,
// and what saved said only that a column is missing.
func TestCheck_ATableBeforeOurs(t *testing.T) {
	u := newDatabaseOn(t)
	m := units(t, uow.Config{Domain: sales, Providers: []uow.Provider{openPostgres(t, postgres.Config{DSN: u.String()})}})
	require.NoError(t, Migrate(t.Context(), m))
	db := m.Providers()[0].DB()
	for _, query := range []string{
		"CREATE SCHEMA mine", "CREATE TABLE mine.documents (id int)", "CREATE TABLE mine.sales (id int)",
		"ALTER DATABASE " + strings.TrimPrefix(u.Path, "/") + " SET search_path = mine, public",
	} {
		_, err := db.ExecContext(t.Context(), query)
		require.NoError(t, err)
	}
	require.NoError(t, Check(t.Context(), m), "its connections are of before")
	m = units(t, uow.Config{Domain: sales, Providers: []uow.Provider{openPostgres(t, postgres.Config{DSN: u.String()})}})
	const want = `provider "default": table documents: the search_path (mine, public) leads to the one of schema mine, and Waybill's is in schema public`
	require.ErrorContains(t, Check(t.Context(), m), want)
	require.ErrorContains(t, setup(t).make(Config{Units: []*uow.Manager{m}, Brokers: map[string]broker.Broker{"default": memory.New(memory.Config{})}}).Start(t.Context()), want)
	m = units(t, uow.Config{Domain: sales, Providers: []uow.Provider{openPostgres(t, postgres.Config{DSN: u.String(), Schema: "public"})}})
	require.NoError(t, Check(t.Context(), m))
}
