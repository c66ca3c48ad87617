package historydb_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/internal/historydb"
	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/internal/rights/rightstest"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a database with both tables of events, as an application's role sees it.
type world struct {
	uow.Provider

	t *testing.T
}

func each(t *testing.T, f func(t *testing.T, w world)) {
	t.Parallel()
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		p := dbtest.SQLite(t)
		migrated(t, p)
		f(t, world{p, t})
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		f(t, onPostgres(t))
	})
}

func onPostgres(t *testing.T) world {
	t.Helper()
	p, cfg := dbtest.Postgres(t)
	migrated(t, p)
	_, err := p.DB().ExecContext(t.Context(), "CREATE TABLE other (n integer)")
	require.NoError(t, err)
	as := rightstest.As(t, p, cfg, migrate.App, historydb.Migrations(), repository.Migrations())
	_, err = p.DB().ExecContext(t.Context(), "GRANT INSERT ON other TO PUBLIC")
	require.NoError(t, err)
	return world{as, t}
}

func migrated(t *testing.T, p uow.Provider) {
	t.Helper()
	require.NoError(t, historydb.Migrations().Up(t.Context(), p.DB()))
	require.NoError(t, repository.Migrations().Up(t.Context(), p.DB()))
}

// event is one of category "shop::order".
func event(id string, version int64, n int) outbox.Event {
	return outbox.Event{
		Metadata: domain.Metadata{
			ID: uuid.Must(uuid.NewV7()).String(), Type: "Shop.Placed.v1", Time: time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC),
			Stream: "shop::order-" + id, Category: "shop::order", Context: "shop", Aggregate: "order", AggregateID: id,
			Version: version, Sequence: fmt.Sprintf("%d.%d", version, n),
		},
		Data: []byte(`{"ID": "` + id + `"}`),
	}
}

// keep commits events in one unit.
func (w world) keep(events ...outbox.Event) {
	w.t.Helper()
	require.NoError(w.t, w.Session().Commit(w.t.Context(), []uow.Statement{{Query: historydb.Insert(events), Rows: -1}}))
}

// write inserts an event into one of the tables, within tx.
func (w world) write(tx bun.IDB, table, id string) {
	w.t.Helper()
	into := "history"
	if table == "history" && tx.Dialect().Name().String() == "sqlite" {
		into = "history_insert"
	}
	if table == "events" {
		into = "events"
	}
	_, err := tx.ExecContext(w.t.Context(), "INSERT INTO "+into+" (version, occurred_at, n, message_id, category, id, type, data) VALUES (1, '2026-01-02T03:04:05Z', 1, ?, 'shop::order', ?, 'Shop.Placed.v1', '{}')",
		uuid.NewString(), id)
	require.NoError(w.t, err)
}

func (w world) begin() bun.Tx {
	w.t.Helper()
	tx, err := w.DB().BeginTx(w.t.Context(), nil)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// reading is a reader with its cursor.
type reading struct {
	*historydb.Reader

	w  world
	at int64
}

func (w world) reading(f historydb.Filter) *reading {
	return &reading{Reader: historydb.NewReader(w.Provider.Reader(), f), w: w}
}

// ids are the aggregates of the next page.
func (r *reading) ids(limit int) (ids []string) {
	r.w.t.Helper()
	p, err := r.Page(r.w.t.Context(), r.at, 0, limit)
	require.NoError(r.w.t, err)
	for _, e := range p.Events {
		ids = append(ids, e.AggregateID)
	}
	r.at = p.UpTo
	return ids
}

// all are those of all pages.
func (r *reading) all(limit int) (ids []string) {
	r.w.t.Helper()
	for {
		before := r.at
		ids = append(ids, r.ids(limit)...)
		if r.at == before {
			return ids
		}
	}
}
