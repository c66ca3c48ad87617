package engine

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/internal/logtest"
	"github.com/waybill-go/waybill/internal/rights"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Two contexts: sales sells, parcels sends what was sold.
type (
	sale struct {
		domain.Root
		Amount int
	}
	SaleMade  struct{ Amount int }
	SaleNoted struct{}

	parcel     struct{ domain.Root }
	ParcelSent struct{}
	Sold       struct{ Amount int } // SaleMade, in the words of parcels
)

var (
	sales = domain.MustNew("sales",
		domain.Aggregate[*sale]("sale", domain.Event[SaleMade](domain.Published()), domain.Event[SaleNoted]()),
	)
	parcels = domain.MustNew("parcels",
		domain.Aggregate[*parcel]("parcel", domain.Event[ParcelSent](domain.Published())),
		domain.Foreign[Sold]("Sales.SaleMade.v1"),
	)
)

func newSale(amount int) *sale {
	s := &sale{Root: domain.NewRoot(), Amount: amount}
	s.Raise(SaleMade{Amount: amount})
	return s
}

// bench is an engine's surroundings.
type bench struct {
	t       *testing.T
	db      uow.Provider
	main    *memory.Broker
	partner *memory.Broker
	sales   *uow.Manager
	parcels *uow.Manager
	repo    *repository.Repository[*sale]
	logs    *logs
}

// setup opens a migrated database, two brokers, and two contexts.
func setup(t *testing.T) *bench {
	t.Helper()
	return setupOn(t, openSQLite(t, "default"))
}

func setupOn(t *testing.T, db uow.Provider) *bench {
	t.Helper()
	b := &bench{t: t, db: db, main: memory.New(memory.Config{}), partner: memory.New(memory.Config{}), logs: &logs{}}
	b.sales = units(t, uow.Config{Domain: sales, Providers: []uow.Provider{b.db}, External: []outbox.Target{{Broker: "partner"}}})
	b.parcels = units(t, uow.Config{Domain: parcels, Providers: []uow.Provider{b.db}})
	b.repo = repository.New[*sale](b.sales)
	require.NoError(t, Migrate(t.Context(), b.sales, b.parcels))
	return b
}

// openEmpty opens a database without tables.
func openEmpty(t *testing.T, name string) uow.Provider {
	t.Helper()
	return dbtest.SQLite(t, func(c *sqlite.Config) { c.Name = name })
}

// openSQLite opens one that has them.
func openSQLite(t *testing.T, name string) uow.Provider {
	t.Helper()
	return dbtest.SQLite(t, func(c *sqlite.Config) { c.Name = name }, dbtest.With(t, rights.Features()...))
}

func units(t *testing.T, cfg uow.Config) *uow.Manager {
	t.Helper()
	m, err := uow.New(cfg)
	require.NoError(t, err)
	return m
}

// fast is for tests that don't want to wait for a poll or a lease.
var fast = outbox.Config{PollInterval: 20 * time.Millisecond, MaxPollInterval: 20 * time.Millisecond, Lease: 2 * time.Second}

func (b *bench) config() Config {
	return Config{
		Units:   []*uow.Manager{b.sales, b.parcels},
		Brokers: map[string]broker.Broker{"default": b.main, "partner": b.partner},
		Outbox:  fast,
		Server:  Server{Addr: "127.0.0.1:0"},
		Logger:  slog.New(slog.NewTextHandler(b.logs, nil)),
	}
}

// withAnalytics is config with parcels on a database of its own, analytics.
func (b *bench) withAnalytics() (Config, *faulty) {
	b.t.Helper()
	other := newFaulty(b.t, "analytics")
	analytics := units(b.t, uow.Config{Domain: parcels, Providers: []uow.Provider{other}})
	require.NoError(b.t, Migrate(b.t.Context(), analytics))
	cfg := b.config()
	cfg.Units = []*uow.Manager{b.sales, analytics}
	return cfg, other
}

// orders is a subscription of parcels to sales.
func (b *bench) orders(handle func(context.Context, Sold) error) subscription.Stream {
	return subscription.Stream{
		Name: "parcels", Category: "sales::sale", Units: b.parcels, Backoff: time.Millisecond,
		Handlers: []subscription.Handler{subscription.On(handle)},
	}
}

func (b *bench) make(cfg Config) *Engine {
	b.t.Helper()
	e, err := New(cfg)
	require.NoError(b.t, err)
	return e
}

// start starts an engine that ends with the test.
func (b *bench) start(cfg Config) *Engine {
	b.t.Helper()
	e := b.make(cfg)
	require.NoError(b.t, e.Start(b.t.Context()))
	b.t.Cleanup(func() { require.NoError(b.t, e.Stop(context.Background())) })
	return e
}

func (b *bench) sell(n int) {
	b.t.Helper()
	for i := range n {
		require.NoError(b.t, b.repo.Save(b.t.Context(), newSale(i+1)))
	}
}

func eventually(t *testing.T, condition func() bool) {
	t.Helper()
	waittest.Until(t, condition)
}

// get fetches JSON from an engine's own server, with the token if there is one.
func get(t *testing.T, e *Engine, path string, into any) int {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+e.Addr()+path, nil)
	require.NoError(t, err)
	if e.cfg.Server.Token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(body, into), "%s", body)
	return response.StatusCode
}

// refusedRow is a broker's word on one row, which costs it an attempt.
func refusedRow(why string) error {
	return broker.Scoped(broker.Transient, broker.ScopeRow, errors.New(why))
}

type logs struct{ logtest.Log }

// with returns the lines that contain all words.
func (l *logs) with(words ...string) []string {
	var found []string
	for line := range strings.Lines(l.String()) {
		all := true
		for _, w := range words {
			all = all && strings.Contains(line, w)
		}
		if all {
			found = append(found, line)
		}
	}
	return found
}

// faulty is a provider whose server can be made to refuse or to say nothing.
type faulty struct {
	uow.Provider
	db   *bun.DB
	down atomic.Bool
	hung atomic.Bool
	slow atomic.Bool // 0.6 s for each answer
}

func newFaulty(t *testing.T, name string) *faulty {
	t.Helper()
	path := filepath.Join(t.TempDir(), name+".db")
	file, err := sqlite.Open(t.Context(), sqlite.Config{Name: name, Path: path})
	require.NoError(t, err)
	f := &faulty{Provider: file}
	// Never an idle connection: each use of the database connects, or can't.
	db := sql.OpenDB(connector{f, file.DB().Driver(), "file:" + path + "?_txlock=immediate&_busy_timeout=5000"})
	db.SetMaxIdleConns(-1)
	f.db = bun.NewDB(db, sqlitedialect.New())
	t.Cleanup(func() { require.NoError(t, f.db.Close()); require.NoError(t, file.Close()) })
	return f
}

func (f *faulty) DB() *bun.DB     { return f.db }
func (f *faulty) Reader() *bun.DB { return f.db }

type connector struct {
	f      *faulty
	driver driver.Driver
	dsn    string
}

func (c connector) Driver() driver.Driver { return c.driver }

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	for c.f.hung.Load() {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if c.f.slow.Load() {
		<-time.After(600 * time.Millisecond)
	}
	if c.f.down.Load() {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	return c.driver.Open(c.dsn)
}

func newParcel(id string) *parcel {
	p := &parcel{Root: domain.RootWithID(id)}
	p.Raise(ParcelSent{})
	return p
}

func mustMetadata(ctx context.Context) domain.Metadata {
	m, ok := domain.MetadataFrom(ctx)
	if !ok {
		panic("a handler's context has the message's metadata")
	}
	return m
}
