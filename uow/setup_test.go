package uow_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/rights/rightstest"
	"github.com/waybill-go/waybill/internal/rootstate"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
	"github.com/waybill-go/waybill/uow/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The context of the tests.
var bank = domain.MustNew("bank",
	domain.Aggregate[*Account]("account", domain.Event[Deposited](domain.Published()), domain.Event[Noted]()),
	domain.Aggregate[*Customer]("customer", domain.Event[Renamed]()),
)

var shop = domain.MustNew("shop", domain.Aggregate[*Customer]("customer", domain.Event[Renamed]()))

// Account may not be overdrawn.
type Account struct {
	domain.Root
	Balance int
	Note    string
}

type (
	Deposited struct{ Amount int } // published
	Noted     struct{ Text string }
	Renamed   struct{ Name string }
	Stray     struct{}
)

var errOverdrawn = errors.New("overdrawn")

func newAccount(id string) *Account { return &Account{Root: domain.RootWithID(id)} }

func (a *Account) Deposit(n int) {
	a.Balance += n
	a.Raise(Deposited{Amount: n})
}

func (a *Account) Annotate(text string) {
	a.Note = text
	a.Raise(Noted{Text: text})
}

func (a *Account) Validate() error {
	if a.Balance < 0 {
		return errOverdrawn
	}
	return nil
}

type Customer struct {
	domain.Root
	Name string
}

func newCustomer(id string) *Customer { return &Customer{Root: domain.RootWithID(id)} }

func (c *Customer) Rename(name string) {
	c.Name = name
	c.Raise(Renamed{Name: name})
}

const tables = "CREATE TABLE things (category text NOT NULL, id text NOT NULL, version bigint NOT NULL, state text NOT NULL, unit text NOT NULL, PRIMARY KEY (category, id))"

// store keeps aggregates in the table things. It is what a repository is to a
// unit of work, without any comfort.
type store struct{ provider string }

var _ uow.Persister = store{}

func (s store) Provider() string { return s.provider }

func (s store) Persist(c uow.Change) ([]uow.Statement, error) {
	state, err := json.Marshal(c.Aggregate)
	if err != nil {
		return nil, err
	}
	category, id := c.Type.Category, c.Aggregate.ID()
	st := uow.Statement{Rows: 1, Else: c.Conflict()}
	switch {
	case c.Removed:
		st.Query = bun.SafeQuery("DELETE FROM things WHERE category = ? AND id = ? AND version = ?", category, id, c.Expected)
	case c.Expected == 0:
		st.Query = bun.SafeQuery("INSERT INTO things (category, id, version, state, unit) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", category, id, c.Version, string(state), c.Unit)
	default:
		st.Query = bun.SafeQuery("UPDATE things SET version = ?, state = ?, unit = ? WHERE category = ? AND id = ? AND version = ?", c.Version, string(state), c.Unit, category, id, c.Expected)
	}
	return []uow.Statement{st}, nil
}

// Resolve only looks: nothing arrives late here.
func (s store) Resolve(ctx context.Context, tx bun.Tx, c uow.Change) (uow.Outcome, error) {
	var version int64
	var unit string
	err := tx.NewRaw("SELECT version, unit FROM things WHERE category = ? AND id = ?", c.Type.Category, c.Aggregate.ID()).Scan(ctx, &version, &unit)
	if errors.Is(err, sql.ErrNoRows) {
		return uow.NotCommitted, nil
	}
	return c.Outcome(version, unit), err
}

func (s store) save(ctx context.Context, a domain.AggregateRoot) error {
	u, err := uow.From(ctx)
	if err != nil {
		return err
	}
	return u.Save(ctx, a, s)
}

func (s store) remove(ctx context.Context, a domain.AggregateRoot) error {
	u, err := uow.From(ctx)
	if err != nil {
		return err
	}
	return u.Remove(ctx, a, s)
}

// get loads a into the unit, or returns the instance that the unit has.
func get[A domain.AggregateRoot](ctx context.Context, s store, a A) (A, error) {
	u, err := uow.From(ctx)
	if err != nil {
		return a, err
	}
	read, err := u.Read(s.provider)
	if err != nil {
		return a, err
	}
	db, err := read(ctx)
	if err != nil {
		return a, err
	}
	if err := scan(ctx, db, a); err != nil {
		return a, err
	}
	held, err := u.Loaded(a, s.provider)
	if err != nil {
		return a, err
	}
	return held.(A), nil
}

// scan fills an aggregate of which only the identity is known.
func scan(ctx context.Context, db bun.IDB, a domain.AggregateRoot) error {
	t, err := bank.AggregateTypeOf(a)
	if err != nil {
		return err
	}
	var state string
	root := rootstate.Of(a)
	if err := db.NewRaw("SELECT version, state FROM things WHERE category = ? AND id = ?", t.Category, root.ID).Scan(ctx, &root.Version, &state); err != nil {
		return err
	}
	return json.Unmarshal([]byte(state), a)
}

// providers opens providers of one kind, each on a database of its own.
type providers func(t *testing.T, name string) uow.Provider

func openPostgres(t *testing.T, name string) uow.Provider {
	p, cfg := dbtest.Postgres(t, func(c *postgres.Config) { c.Name = name })
	return owner{p, cfg}
}

// owner is PostgreSQL as the role that makes the tables. Units work as another one.
type owner struct {
	uow.Provider
	cfg postgres.Config
}

func openSQLite(t *testing.T, name string) uow.Provider {
	return dbtest.SQLite(t, func(c *sqlite.Config) { c.Name = name }, dbtest.With(t, outboxdb.Migrations()))
}

// databases runs a test on both.
func databases(t *testing.T, test func(t *testing.T, open providers)) {
	t.Run("postgres", func(t *testing.T) { test(t, openPostgres) })
	t.Run("sqlite", func(t *testing.T) { test(t, openSQLite) })
}

// world is a context's units on one database.
type world struct {
	units *uow.Manager
	db    *spy
	owner *bun.DB // of the tables
	wakes *[]string
	// retries are those of another manager.
	retries int
	store
}

// newWorld opens a database with all tables, and units on it.
func newWorld(t *testing.T, open providers, change ...func(*uow.Config)) *world {
	w := &world{db: &spy{Provider: open(t, "default")}, wakes: &[]string{}, retries: 100}
	w.owner = w.db.DB()
	w.create(t, w.db)
	cfg := uow.Config{Domain: bank, Providers: []uow.Provider{w.db}, External: []outbox.Target{{Broker: "partner"}}}
	for _, c := range change {
		c(&cfg)
	}
	units, err := uow.New(cfg)
	require.NoError(t, err)
	w.units = units
	t.Cleanup(units.OnCommit(func(provider string, pokes []outbox.Poke) []outbox.Poke {
		targets := map[string]bool{}
		for _, p := range pokes {
			targets[p.Target] = true
		}
		*w.wakes = append(*w.wakes, fmt.Sprint(provider, slices.Sorted(maps.Keys(targets))))
		return nil // nobody else is told, which would be one more request
	}))
	return w
}

// create makes the tables. Units have an application's rights on them.
func (w *world) create(t *testing.T, p *spy) {
	t.Helper()
	db := p.DB()
	require.NoError(t, outboxdb.Migrate(t.Context(), db, 0))
	if o, ok := p.Provider.(owner); ok {
		p.Provider = rightstest.As(t, o.Provider, o.cfg, migrate.App, outboxdb.Migrations())
	}
	_, err := db.ExecContext(t.Context(), tables)
	require.NoError(t, err)
	// As who migrates with a configuration does, and every engine: see TestTargets_TheirLanesAreThere.
	_, err = db.ExecContext(t.Context(), "INSERT INTO outbox_lanes (target) VALUES ('default'), ('partner')")
	require.NoError(t, err)
}

// saved saves aggregates in a unit of their own.
func (w *world) saved(t *testing.T, all ...domain.AggregateRoot) {
	t.Helper()
	require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error {
		for _, a := range all {
			if err := w.save(ctx, a); err != nil {
				return err
			}
		}
		return nil
	}))
	*w.wakes = nil
	w.db.reset()
}

// row is what the tests look at in the outbox.
type row struct {
	Seq              int64
	MessageID        string
	TargetBroker     string
	MessageType      string
	AggregateType    string
	AggregateID      string
	AggregateVersion int64
	CorrelationID    string
	CausationID      string
	TenantID         string
	Priority         int
	Status           string
	Payload          []byte
}

// rows are the outbox's, in the order of seq.
func rows(t *testing.T, p uow.Provider) (all []row) {
	t.Helper()
	require.NoError(t, p.Reader().NewRaw(`SELECT seq, message_id, target_broker, message_type, aggregate_type, aggregate_id, aggregate_version,
		coalesce(correlation_id, '') AS correlation_id, coalesce(causation_id, '') AS causation_id, coalesce(tenant_id, '') AS tenant_id,
		priority, status, payload FROM outbox ORDER BY seq`).Scan(t.Context(), &all))
	return all
}

// events are the rows for the context's own broker, as "account-a@1 Deposited".
func (w *world) events(t *testing.T) (all []string) {
	t.Helper()
	for _, r := range rows(t, w.db) {
		if r.TargetBroker == "default" {
			all = append(all, fmt.Sprintf("%s-%s@%d %s", r.AggregateType, r.AggregateID, r.AggregateVersion, r.MessageType[len("Bank."):len(r.MessageType)-len(".v1")]))
		}
	}
	return all
}

// things are the aggregates, as "account-a@1".
func (w *world) things(t *testing.T) (all []string) {
	t.Helper()
	var found []struct {
		Category, ID string
		Version      int64
	}
	require.NoError(t, w.db.Reader().NewRaw("SELECT category, id, version FROM things").Scan(t.Context(), &found))
	for _, f := range found {
		all = append(all, fmt.Sprintf("%s-%s@%d", f.Category[len("bank::"):], f.ID, f.Version))
	}
	slices.Sort(all)
	return all
}

func (w *world) nothing(t *testing.T) {
	t.Helper()
	require.Empty(t, w.things(t))
	require.Empty(t, rows(t, w.db))
	require.Empty(t, *w.wakes)
	w.returned(t)
}

// returned says that no connection is out.
func (w *world) returned(t *testing.T) {
	t.Helper()
	require.Zero(t, w.db.DB().Stats().InUse+w.db.Reader().Stats().InUse)
}

// spy is a provider that tells what its sessions were asked, and fails where it
// is told to.
type spy struct {
	uow.Provider
	calls  []string // "send 2", "commit 3", "rollback", "db"
	texts  []string // what was sent, in order
	commit func(s uow.Session, commit func() error) error
	send   func() error
	begin  func() // before a transaction does
}

func (p *spy) reset() { p.calls, p.texts = nil, nil }

func (p *spy) Session() uow.Session { return &spySession{Session: p.Provider.Session(), p: p} }

type spySession struct {
	uow.Session
	p *spy
}

func (s *spySession) note(call string, statements []uow.Statement) {
	s.p.calls = append(s.p.calls, call)
	for _, st := range statements {
		b, err := st.Query.AppendQuery(s.p.Reader().QueryGen(), nil)
		if err != nil {
			panic(err)
		}
		s.p.texts = append(s.p.texts, string(b))
	}
}

func (s *spySession) DB(ctx context.Context) (bun.IDB, error) {
	s.note("db", nil)
	if begin := s.p.begin; begin != nil {
		s.p.begin = nil
		begin()
	}
	return s.Session.DB(ctx)
}

func (s *spySession) Send(ctx context.Context, statements []uow.Statement) error {
	s.note(fmt.Sprint("send ", len(statements)), statements)
	if s.p.send != nil {
		if err := s.p.send(); err != nil {
			return err
		}
	}
	return s.Session.Send(ctx, statements)
}

func (s *spySession) Commit(ctx context.Context, statements []uow.Statement) error {
	s.note(fmt.Sprint("commit ", len(statements)), statements)
	commit := func() error { return s.Session.Commit(ctx, statements) }
	if s.p.commit != nil {
		return s.p.commit(s.Session, commit)
	}
	return commit()
}

func (s *spySession) Rollback(ctx context.Context) error {
	s.note("rollback", nil)
	return s.Session.Rollback(ctx)
}
