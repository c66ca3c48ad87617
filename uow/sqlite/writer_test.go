package sqlite_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/internal/writer"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/sqlite"
)

// queue is who waits for the writer.
type queue struct {
	p    uow.Provider
	n    int
	wg   sync.WaitGroup
	mu   sync.Mutex
	errs []error
}

// join lets one more wait, behind those that do already.
func (q *queue) join(ctx context.Context, t *testing.T, write func(ctx context.Context) error) {
	t.Helper()
	q.wg.Go(func() {
		if err := write(ctx); err != nil {
			q.mu.Lock()
			defer q.mu.Unlock()
			q.errs = append(q.errs, err)
		}
	})
	q.n++
	q.waiting(t)
}

func (q *queue) waiting(t *testing.T) {
	t.Helper()
	waittest.Until(t, func() bool { return sqlite.Waiting(q.p) == q.n })
}

// inserts are the ways to write something.
func inserts(p uow.Provider) []func(ctx context.Context, name string) error {
	const insert = "INSERT INTO things (name) VALUES (?)"
	return []func(ctx context.Context, name string) error{
		func(ctx context.Context, name string) error {
			return p.Session().Commit(ctx, []uow.Statement{{Query: bun.SafeQuery(insert, name), Rows: -1}})
		},
		func(ctx context.Context, name string) error {
			return p.DB().RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
				_, err := tx.ExecContext(ctx, insert, name)
				return err
			})
		},
		func(ctx context.Context, name string) error {
			_, err := p.DB().ExecContext(ctx, insert, name)
			return err
		},
		func(ctx context.Context, name string) error {
			var n int
			return p.DB().NewRaw(insert+" RETURNING n", name).Scan(ctx, &n)
		},
	}
}

// held is a database whose writer is busy until the returned session ends.
func held(t *testing.T) (uow.Provider, uow.Session) {
	t.Helper()
	p := open(t, filepath.Join(t.TempDir(), "test.db"))
	_, err := p.DB().ExecContext(t.Context(), "CREATE TABLE things (n integer PRIMARY KEY AUTOINCREMENT, name text)")
	require.NoError(t, err)
	holder := p.Session()
	_, err = holder.DB(t.Context())
	require.NoError(t, err)
	return p, holder
}

func written(t *testing.T, p uow.Provider) (names []string) {
	t.Helper()
	require.NoError(t, p.Reader().NewRaw("SELECT name FROM things ORDER BY n").Scan(t.Context(), &names))
	return names
}

// U-23: whoever came first is first, whether it is a unit of work, a transaction
// or a statement; but the renewal of a lease goes before them.
func TestWriter_U23_FirstComeFirstServed(t *testing.T) {
	p, holder := held(t)
	q := &queue{p: p}
	ways := inserts(p)
	var want []string
	join := func(ctx context.Context, at int, name string) {
		want = slices.Insert(want, at, name)
		way := ways[len(want)%len(ways)]
		q.join(ctx, t, func(ctx context.Context) error { return way(ctx, name) })
	}
	for i := range 24 {
		join(t.Context(), i, fmt.Sprint("waiter ", i))
	}
	for i := range 4 {
		join(writer.Urgent(t.Context()), i, fmt.Sprint("urgent ", i))
	}
	require.NoError(t, holder.Rollback(t.Context()))
	q.wg.Wait()
	require.Empty(t, q.errs)
	require.Equal(t, want, written(t, p))
}

// Who gives up waiting takes nobody's turn.
func TestWriter_WaitingEndsWithItsContext(t *testing.T) {
	p, holder := held(t)
	q := &queue{p: p}
	insert := func(name string) func(context.Context) error {
		return func(ctx context.Context) error { return inserts(p)[1](ctx, name) }
	}
	ctx, cancel := context.WithCancel(t.Context())
	q.join(t.Context(), t, insert("first"))
	q.join(ctx, t, insert("gives up"))
	q.join(writer.Urgent(ctx), t, insert("gives up too"))
	q.join(t.Context(), t, insert("last"))
	cancel()
	q.n = 2
	q.waiting(t)
	require.NoError(t, holder.Rollback(t.Context()))
	q.wg.Wait()
	require.Equal(t, []error{context.Canceled, context.Canceled}, q.errs)
	require.Equal(t, []string{"first", "last"}, written(t, p))
}

// A turn that comes while its owner gives up is passed on.
func TestWriter_NoTurnIsLost(t *testing.T) {
	p := open(t, filepath.Join(t.TempDir(), "test.db"))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 100 {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration((i*100+n)%7)*20*time.Microsecond)
				if tx, err := p.DB().BeginTx(ctx, nil); err == nil {
					_ = tx.Rollback()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	require.Zero(t, sqlite.Waiting(p))
	tx, err := p.DB().BeginTx(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, tx.Rollback())
}

// Close lets the transaction in progress end, and nobody else begin.
func TestWriter_Close(t *testing.T) {
	p, err := sqlite.Open(t.Context(), sqlite.Config{Path: filepath.Join(t.TempDir(), "test.db")})
	require.NoError(t, err)
	s := p.Session()
	db, err := s.DB(t.Context())
	require.NoError(t, err)
	q := &queue{p: p}
	q.join(t.Context(), t, func(ctx context.Context) error {
		return p.Session().Send(ctx, []uow.Statement{{Query: bun.SafeQuery("INSERT INTO things VALUES ('late')"), Rows: -1}})
	})
	require.NoError(t, p.Close())
	_, err = db.ExecContext(t.Context(), "CREATE TABLE things (id text)")
	require.NoError(t, err)
	require.NoError(t, s.Commit(t.Context(), nil))
	q.wg.Wait()
	require.Len(t, q.errs, 1)
	require.ErrorIs(t, q.errs[0], sql.ErrConnDone)
	require.False(t, sqlite.IsOpen(p))
}

func TestWriter_PreparesInTransactionsOnly(t *testing.T) {
	p := open(t, filepath.Join(t.TempDir(), "test.db"))
	_, err := p.DB().PrepareContext(t.Context(), "SELECT 1")
	require.ErrorContains(t, err, "begin a transaction")
	tx, err := p.DB().BeginTx(t.Context(), nil)
	require.NoError(t, err)
	stmt, err := tx.PrepareContext(t.Context(), "SELECT ?")
	require.NoError(t, err)
	defer func() { _ = stmt.Close() }()
	var n int
	require.NoError(t, stmt.QueryRowContext(t.Context(), 7).Scan(&n))
	require.Equal(t, 7, n)
	require.NoError(t, tx.Commit())
}

// What Held says is how long others waited.
func TestHeld(t *testing.T) {
	p := open(t, filepath.Join(t.TempDir(), "test.db"))
	require.Zero(t, p.Session().Held())
	first, second := p.Session(), p.Session()
	_, err := first.DB(t.Context())
	require.NoError(t, err)
	q := &queue{p: p}
	q.join(t.Context(), t, func(ctx context.Context) error {
		_, err := second.DB(ctx)
		return err
	})
	<-time.After(50 * time.Millisecond)
	begin := time.Now()
	require.NoError(t, first.Commit(t.Context(), nil))
	q.wg.Wait()
	require.NoError(t, second.Rollback(t.Context()))
	require.GreaterOrEqual(t, first.Held(), 50*time.Millisecond)
	require.LessOrEqual(t, second.Held(), time.Since(begin), "to wait is not to hold")
}

// Who waits in vain for the writer is told which handler has it.
func TestWriter_WhoHasIt(t *testing.T) {
	p, holder := held(t)
	sqlite.SetWriterTimeout(p, 10*time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	for _, way := range inserts(p) {
		require.ErrorContains(t, way(t.Context(), "late"), "the writer was busy for 10ms")
		err := way(ctx, "late")
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	require.NoError(t, holder.Rollback(t.Context()))
	who := p.(interface {
		WriterHeld() (string, time.Duration)
	})
	_, since := who.WriterHeld()
	require.Zero(t, since)

	handler := p.Session()
	_, err := handler.DB(domain.WithMetadata(t.Context(), domain.Metadata{ID: "m-1", Type: "Sales.SaleMade.v1"}))
	require.NoError(t, err)
	by, since := who.WriterHeld()
	require.Equal(t, "the handler of Sales.SaleMade.v1, message m-1,", by)
	require.Positive(t, since)
	for _, way := range inserts(p) {
		require.ErrorContains(t, way(t.Context(), "late"), "; the handler of Sales.SaleMade.v1, message m-1, has had it for ")
	}
	waiting, done := context.WithTimeout(t.Context(), time.Millisecond)
	defer done()
	sqlite.SetWriterTimeout(p, time.Minute)
	_, err = p.DB().ExecContext(waiting, "INSERT INTO things (name) VALUES ('late')")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "while it waited for the file's one writer; the handler of Sales.SaleMade.v1, message m-1, has had it for ")
	require.NoError(t, handler.Rollback(t.Context()))
}
