package history_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/history"
	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/uow"
)

// store puts an event into the history as another program does.
func store(t *testing.T, p uow.Provider, category, id, typ string) {
	t.Helper()
	into := "history"
	if p.DB().Dialect().Name().String() == "sqlite" {
		into = "history_insert"
	}
	_, err := p.DB().ExecContext(t.Context(), "INSERT INTO "+into+" (version, occurred_at, n, message_id, category, id, type, data) VALUES (1, '2026-01-02T03:04:05Z', 1, ?, ?, ?, ?, '{}')",
		uuid.NewString(), category, id, typ)
	require.NoError(t, err)
}

// A range of types has the events of all names that a type has had, and of other contexts those
// that this one declares; one of theirs is named with its context.
func TestRead_ATypeHasAllItsNamesAndForeignOnesTheirContext(t *testing.T) {
	each(t, func(t *testing.T, p uow.Provider) {
		w := openWorld(t, p)
		store(t, p, "library::book", "a", "Library.Gone.v1")
		store(t, p, "library::book", "b", "Library.Sold.v1")
		store(t, p, "billing::fee", "f", "Billing.Charged.v1")
		store(t, p, "billing::fee", "f", "Billing.Forgiven.v1")
		ids := func(types ...string) (all []string) {
			for e, err := range history.Read(t.Context(), w.units, history.Range{Types: types}) {
				require.NoError(t, err)
				all = append(all, e.AggregateID)
			}
			return all
		}
		require.Equal(t, []string{"a", "b"}, ids("Sold"))
		require.Equal(t, []string{"f"}, ids("Billing.Charged"))
		require.Equal(t, []string{"a", "b", "f"}, ids(), "without types, what this context declares")
		for _, err := range history.Read(t.Context(), w.units, history.Range{Types: []string{"Charged"}}) {
			require.ErrorContains(t, err, `context library declares no event "Charged"`)
		}
	})
}

// Of contexts that share a database each has a beginning of its own.
func TestBegin_PassesWhatAnotherContextHasKept(t *testing.T) {
	each(t, func(t *testing.T, p uow.Provider) {
		store(t, p, "billing::fee", "f", "Billing.Forgiven.v1")
		store(t, p, "billing::fee", "g", "Billing.Forgiven.v1")
		w := openWorld(t, p)
		_, ok, err := history.Begin(t.Context(), w.units)
		require.NoError(t, err)
		require.False(t, ok)
		require.NoError(t, w.books.Save(t.Context(), newBook("b")))
		first, ok, err := history.Begin(t.Context(), w.units)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, "book-b@1.1 Acquired", name(first))
	})
}

// Who reads as long as a context lets it is told whom it has waited for.
func TestRead_NamesWhomItHasWaitedFor(t *testing.T) {
	t.Parallel()
	p, _ := dbtest.Postgres(t)
	w := openWorld(t, p)
	require.NoError(t, engine.Migrate(t.Context(), w.units))
	open, err := p.DB().BeginTx(t.Context(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = open.Rollback() })
	var writer string
	require.NoError(t, open.QueryRowContext(t.Context(), "INSERT INTO history (version, occurred_at, n, message_id, category, id, type, data)"+
		" VALUES (1, now(), 1, gen_random_uuid(), 'library::book', 'late', 'Library.Sold.v1', '{}')"+
		" RETURNING (SELECT virtualtransaction FROM pg_locks WHERE pid = pg_backend_pid() LIMIT 1)").Scan(&writer))
	require.NoError(t, w.books.Save(t.Context(), newBook("b")))
	waittest.Until(t, func() bool { // its context may end while it asks
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		var said string
		for e, err := range history.Read(ctx, w.units, history.Range{}) {
			require.Error(t, err, e.AggregateID)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			said = err.Error()
		}
		return strings.Contains(said, "pg_locks.virtualtransaction "+writer)
	})
}
