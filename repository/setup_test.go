package repository_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/internal/historydb"
	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/rights/rightstest"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
	"github.com/waybill-go/waybill/uow/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The context of the tests: the same aggregate in each of the three ways.
var shop = domain.MustNew("shop",
	domain.Aggregate[*Tally]("tally", domain.Event[TallyAdded](domain.Published()), domain.Event[TallyLabelled]()),
	domain.Aggregate[*Basket]("basket", domain.Event[BasketAdded](domain.Published()), domain.Event[BasketLabelled]()),
	domain.Aggregate[*Ledger]("ledger",
		domain.Event[LedgerAdded](domain.Published(), domain.Version(2), domain.Upcast(1, func(old LedgerAddedV1) LedgerAdded { return LedgerAdded{N: old.Amount} })),
		domain.Event[LedgerLabelled](),
	),
	domain.Aggregate[*Sealed]("sealed"),
	domain.Aggregate[*HalfSealed]("half-sealed"),
	domain.Aggregate[*Odd]("odd"),
	domain.Aggregate[*Shelf]("shelf", domain.KeepUnknown()),
	domain.Aggregate[*Jar]("jar", domain.KeepUnknown()),
	domain.Aggregate[*Parcel]("parcel", domain.Event[ParcelLoaded](domain.OrderedBy(func(e ParcelLoaded) string { return e.Van }))),
)

// counter is what the suite needs of an aggregate.
type counter interface {
	domain.AggregateRoot
	Add(n int)
	Total() int
	SetLabel(text string)
	Text() string
	SetBroken(broken bool) // breaks an invariant
}

var errBroken = errors.New("broken")

// Tally is kept as a document.
type Tally struct {
	domain.Root
	Sum    int
	Label  string
	Parts  []int
	broken bool `json:"-"`
}

type (
	TallyAdded    struct{ N int }
	TallyLabelled struct{ Text string }
)

func newTally(id string) *Tally { return &Tally{Root: domain.RootWithID(id)} }

func (t *Tally) Add(n int) {
	t.Sum += n
	t.Parts = append(t.Parts, n)
	t.Raise(TallyAdded{N: n})
}
func (t *Tally) Total() int { return t.Sum }
func (t *Tally) SetLabel(text string) {
	t.Label = text
	t.Raise(TallyLabelled{Text: text})
}
func (t *Tally) Text() string     { return t.Label }
func (t *Tally) SetBroken(b bool) { t.broken = b }
func (t *Tally) Validate() error  { return brokenIf(t.broken) }

// Parcel has the order of its van.
type Parcel struct {
	domain.Root
	Van string
}

type ParcelLoaded struct{ Van string }

// Basket is kept in tables of its own.
type Basket struct {
	domain.Root
	label  string
	items  []int
	broken bool
}

type (
	BasketAdded    struct{ N int }
	BasketLabelled struct{ Text string }
)

func newBasket(id string) *Basket { return &Basket{Root: domain.RootWithID(id)} }

func (b *Basket) Add(n int) {
	b.items = append(b.items, n)
	b.Raise(BasketAdded{N: n})
}

func (b *Basket) Total() (sum int) {
	for _, n := range b.items {
		sum += n
	}
	return sum
}

func (b *Basket) SetLabel(text string) {
	b.label = text
	b.Raise(BasketLabelled{Text: text})
}
func (b *Basket) Text() string          { return b.label }
func (b *Basket) SetBroken(broken bool) { b.broken = broken }
func (b *Basket) Validate() error       { return brokenIf(b.broken) }

type basketRow struct {
	bun.BaseModel `bun:"table:baskets"`
	repository.Row
	Label string
	Sum   int
	Items []*itemRow `bun:"rel:has-many,join:id=basket_id"`
	Notes []noteRow  `bun:"rel:has-many,join:id=basket"`
}

type itemRow struct {
	bun.BaseModel `bun:"table:basket_items"`
	BasketID      string `bun:",pk"`
	Position      int    `bun:",pk"`
	N             int
}

// noteRow has a key of its own, made by the database.
type noteRow struct {
	bun.BaseModel `bun:"table:basket_notes"`
	ID            int64 `bun:",pk,autoincrement"`
	Basket        string
	Text          string
}

var basketTables = map[dialect.Name]string{
	dialect.PG: `CREATE TABLE baskets (id text PRIMARY KEY, version bigint NOT NULL, unit text, label text NOT NULL, sum int NOT NULL);
		CREATE TABLE basket_items (basket_id text NOT NULL REFERENCES baskets, position int NOT NULL, n int NOT NULL, PRIMARY KEY (basket_id, position));
		CREATE TABLE basket_notes (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, basket text NOT NULL REFERENCES baskets, text text NOT NULL)`,
	dialect.SQLite: `CREATE TABLE baskets (id text PRIMARY KEY, version integer NOT NULL, unit text, label text NOT NULL, sum integer NOT NULL);
		CREATE TABLE basket_items (basket_id text NOT NULL REFERENCES baskets, position integer NOT NULL, n integer NOT NULL, PRIMARY KEY (basket_id, position));
		CREATE TABLE basket_notes (id integer PRIMARY KEY AUTOINCREMENT, basket text NOT NULL REFERENCES baskets, text text NOT NULL)`,
}

var basketMapping = repository.Mapping[*Basket, basketRow]{
	ToRow: func(b *Basket) (basketRow, error) {
		if b.label == "unmappable" {
			return basketRow{}, errors.New("no such label")
		}
		row := basketRow{Label: b.label, Sum: b.Total()}
		if b.label == "of a child row" {
			row.Notes = []noteRow{{Text: "\x00"}}
		}
		for i, n := range b.items {
			// In an order that is not theirs.
			row.Items = append([]*itemRow{{Position: i, N: n}}, row.Items...)
			row.Notes = append(row.Notes, noteRow{Text: fmt.Sprint("item ", i)})
		}
		return row, nil
	},
	Aggregate: func(row basketRow) (*Basket, error) {
		b := &Basket{label: row.Label}
		switch row.Label {
		case "unreadable":
			return nil, errors.New("no such label")
		case "nil":
			return nil, nil
		case "raises":
			b.Add(1)
		}
		for i, item := range row.Items {
			if row.Notes[i].Text != fmt.Sprint("item ", i) {
				return nil, fmt.Errorf("note %d is %q", i, row.Notes[i].Text)
			}
			b.items = append(b.items, item.N)
		}
		return b, nil
	},
	Children: []func(*basketRow) any{
		func(r *basketRow) any { return &r.Items },
		func(r *basketRow) any { return &r.Notes },
	},
}

// Ledger is kept as its events.
type Ledger struct {
	domain.Root
	sum    int
	label  string
	broken bool
}

type (
	LedgerAdded    struct{ N int }
	LedgerAddedV1  struct{ Amount int }
	LedgerLabelled struct{ Text string }
)

func newLedger(id string) *Ledger { return &Ledger{Root: domain.RootWithID(id)} }

func (l *Ledger) Apply(event any) {
	switch e := event.(type) {
	case LedgerAdded:
		l.sum += e.N
	case LedgerLabelled:
		l.label = e.Text
	}
}
func (l *Ledger) Add(n int)             { domain.Record(l, LedgerAdded{N: n}) }
func (l *Ledger) Total() int            { return l.sum }
func (l *Ledger) SetLabel(text string)  { domain.Record(l, LedgerLabelled{Text: text}) }
func (l *Ledger) Text() string          { return l.label }
func (l *Ledger) SetBroken(broken bool) { l.broken = broken }
func (l *Ledger) Validate() error       { return brokenIf(l.broken) }

func brokenIf(broken bool) error {
	if broken {
		return errBroken
	}
	return nil
}

// testDB is a migrated database.
type testDB struct {
	provider uow.Provider // with an application's rights
	owner    uow.Provider // of the tables
	units    *uow.Manager
}

// onEach runs a test on SQLite and on PostgreSQL.
func onEach(t *testing.T, test func(t *testing.T, db testDB)) {
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		test(t, openSQLite(t, "default"))
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		test(t, openPostgres(t, postgresDSN(t)))
	})
}

func openSQLite(t testing.TB, name string) testDB {
	t.Helper()
	p := dbtest.SQLite(t, func(c *sqlite.Config) { c.Name = name }, dbtest.With(t, outboxdb.Migrations(), historydb.Migrations(), repository.Migrations()))
	return prepare(t, p, func() uow.Provider { return p })
}

func postgresDSN(t testing.TB) string {
	t.Helper()
	return dbtest.Environment(t, "WAYBILL_POSTGRES")
}

func openPostgres(t testing.TB, dsn string) testDB {
	t.Helper()
	p, cfg := dbtest.Postgres(t, func(c *postgres.Config) { c.DSN = dsn })
	return prepare(t, p, func() uow.Provider {
		return rightstest.As(t, p, cfg, migrate.App, outboxdb.Migrations(), historydb.Migrations(), repository.Migrations())
	})
}

// prepare makes the tables. Units then work with what as opens.
func prepare(t testing.TB, owner uow.Provider, as func() uow.Provider) testDB {
	t.Helper()
	require.NoError(t, outboxdb.Migrate(t.Context(), owner.DB(), 0))
	require.NoError(t, outboxdb.InitTargets(t.Context(), owner.DB(), shop.Name(), outbox.Targets{Broker: "default"}))
	require.NoError(t, historydb.Migrations().Up(t.Context(), owner.DB()))
	require.NoError(t, repository.Migrations().Up(t.Context(), owner.DB()))
	p := as()
	_, err := owner.DB().DB.ExecContext(t.Context(), basketTables[p.DB().Dialect().Name()])
	require.NoError(t, err)
	return testDB{provider: p, owner: owner, units: newUnits(t, uow.Config{Providers: []uow.Provider{p}, MaxRetries: 200, MaxMessageBytes: -1})}
}

// keepsHistory has units of the shop keep their events from now on; nothing was saved yet.
func (db testDB) keepsHistory(t testing.TB) {
	t.Helper()
	state, err := outboxdb.New(db.owner.DB(), db.owner.DB()).BeginHistory(t.Context(), shop.Name())
	require.NoError(t, err)
	require.Equal(t, outbox.HistoryOn, state)
}

func newUnits(t testing.TB, cfg uow.Config) *uow.Manager {
	t.Helper()
	cfg.Domain = shop
	units, err := uow.New(cfg)
	require.NoError(t, err)
	return units
}

// outboxRow is what the tests look at.
type outboxRow struct {
	MessageID        string
	Stream           string
	MessageType      string
	AggregateVersion int64
	Payload          []byte
}

// outbox returns the rows of a stream in their order; "" is all of them.
func (db testDB) outbox(t testing.TB, stream string) (rows []outboxRow) {
	t.Helper()
	q := db.provider.Reader().NewSelect().Table("outbox").Column("message_id", "stream", "message_type", "aggregate_version", "payload").Order("seq")
	if stream != "" {
		q = q.Where("stream = ?", stream)
	}
	require.NoError(t, q.Scan(t.Context(), &rows))
	return rows
}

func (db testDB) versions(t testing.TB, stream string) (versions []int64) {
	t.Helper()
	for _, r := range db.outbox(t, stream) {
		versions = append(versions, r.AggregateVersion)
	}
	return versions
}

func (db testDB) exec(t testing.TB, query string, args ...any) {
	t.Helper()
	_, err := db.owner.DB().ExecContext(t.Context(), query, args...)
	require.NoError(t, err)
}

// reopen opens a schema a second time.
func reopen(t testing.TB, schema string) uow.Provider {
	t.Helper()
	p, err := postgres.Open(t.Context(), postgres.Config{DSN: postgresDSN(t), Schema: schema})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}
