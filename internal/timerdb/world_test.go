package timerdb_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/timerdb"
	"github.com/waybill-go/waybill/uow"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a migrated database with an outbox and timers.
type world struct {
	*outboxdbtest.Bench

	p uow.Provider // as an engine's role
}

// each runs a test on every database, beside others.
func each(t *testing.T, f func(t *testing.T, w *world)) {
	t.Parallel()
	for name, open := range map[string]func(testing.TB) outboxdbtest.Database{"SQLite": outboxdbtest.SQLite, "PostgreSQL": outboxdbtest.PostgreSQL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, openWorld(t, open(t)))
		})
	}
}

func openWorld(t *testing.T, db outboxdbtest.Database) *world {
	t.Helper()
	w := &world{Bench: outboxdbtest.Open(t, db)}
	require.NoError(t, timerdb.Migrations().Up(t.Context(), w.DB))
	require.NoError(t, timerdb.Migrations().Check(t.Context(), w.As))
	if o, ok := db.(outboxdbtest.Owned); ok {
		db = o.Limited(t)
	}
	w.p = db.(uow.Provider)
	return w
}

// commit sends statements as a unit of work does, and demands no number of rows.
func (w *world) commit(queries ...schema.QueryAppender) {
	w.T.Helper()
	require.NoError(w.T, w.try(queries...))
}

func (w *world) try(queries ...schema.QueryAppender) error {
	all := make([]uow.Statement, len(queries))
	for i, q := range queries {
		all[i] = uow.Statement{Query: q, Rows: -1}
	}
	return w.send(all...)
}

func (w *world) send(all ...uow.Statement) error {
	session := w.p.Session()
	err := session.Commit(w.T.Context(), all)
	return errors.Join(err, session.Rollback(w.T.Context()))
}

// plain is a statement that can't be prepared, so that its unit is sent as text.
var plain = bun.SafeQuery("SELECT 1")

// timer is one for target "default".
func timer(owner, name string, at time.Time) timerdb.Timer {
	row := outboxdbtest.Row(owner)
	return timerdb.Timer{Owner: owner, Name: name, At: at, Row: row}
}

// to has a timer's message sent to a target.
func to(target string, t timerdb.Timer) timerdb.Timer {
	t.Row.TargetBroker = target
	return t
}

// kept is a row of the table, as far as tests look at it.
type kept struct{ ID, Owner, Name, Status string }

func (w *world) kept() (all []kept) {
	w.T.Helper()
	require.NoError(w.T, w.DB.NewRaw("SELECT id, owner, name, status FROM timers ORDER BY owner, name").Scan(w.T.Context(), &all))
	return all
}

func of(t timerdb.Timer, status string) kept { return kept{t.Row.MessageID, t.Owner, t.Name, status} }

func (w *world) waits(id string) bool {
	w.T.Helper()
	there, err := timerdb.Waits(w.T.Context(), w.p.Reader(), id)
	require.NoError(w.T, err)
	return there
}
