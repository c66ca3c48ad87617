package history_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/internal/historydb"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

// model/history.pml, DRAWFIRST: who waits for the lock of its table has drawn no position yet,
// whatever keeps an event. For one that was drawn before the lock no reader would wait.
func TestRace_APositionIsDrawnBehindTheLockOfItsTable(t *testing.T) {
	t.Parallel()
	p, _ := dbtest.Postgres(t)
	w := openWorld(t, p)
	require.NoError(t, engine.Migrate(t.Context(), w.units))
	for name, keep := range map[string]func(ctx context.Context) error{
		"a document":    func(ctx context.Context) error { return w.books.Save(ctx, newBook("b")) },
		"event-sourced": func(ctx context.Context) error { return w.loans.Save(ctx, newLoan("l")) },
		"another context's": func(ctx context.Context) error {
			e := outbox.Event{Metadata: domain.Metadata{ID: uuid.NewString(), Type: "Billing.Charged.v1", Time: time.Now(), Category: "billing::charge", AggregateID: "c", Sequence: "1.1"}, Data: []byte("{}")}
			return p.Session().Commit(ctx, []uow.Statement{{Query: historydb.InsertMissing(e), Rows: -1}})
		},
	} {
		holder, err := p.DB().BeginTx(t.Context(), nil)
		require.NoError(t, err)
		t.Cleanup(func() { _ = holder.Rollback() })
		_, err = holder.ExecContext(t.Context(), "LOCK TABLE history, events IN SHARE ROW EXCLUSIVE MODE")
		require.NoError(t, err)
		kept := make(chan error, 1)
		go func() { kept <- keep(t.Context()) }()
		waittest.Until(t, func() bool {
			n, err := p.Reader().NewSelect().Table("pg_locks").Where("relation IN ('history'::regclass, 'events'::regclass) AND NOT granted").Count(t.Context())
			require.NoError(t, err)
			require.Empty(t, kept, "it waits for its table")
			return n > 0
		}, "it waits for its table")
		var before, after int64
		require.NoError(t, holder.QueryRowContext(t.Context(), "SELECT nextval('history_position')").Scan(&before))
		require.NoError(t, holder.Commit())
		require.NoError(t, <-kept)
		after, err = historydb.Head(t.Context(), p.Reader())
		require.NoError(t, err)
		require.Equal(t, before+1, after, "the position of %s is from behind the lock", name)
	}
}
