package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/pipeline"
)

// Store is the outbox of one database, as processors and operators see it. It
// is safe for concurrent use.
type Store struct {
	db     *bun.DB
	reader *bun.DB
	// observe, if there is one, is told what is sent at once. Hooks of db aren't.
	observe func([]pipeline.Statement)
}

// NewStore returns the store on a database: db for what writes, reader for what
// only looks.
func NewStore(db, reader *bun.DB) *Store { return &Store{db: db, reader: reader} }

// Check returns an error that names the remedy unless the tables are at this
// build's version.
func (s *Store) Check(ctx context.Context) error { return Migrations().Check(ctx, s.reader) }

func (s *Store) sqlite() bool { return s.db.Dialect().Name() == dialect.SQLite }

func (s *Store) now() string { return dbtime.Now(s.db.Dialect()) }

// inTx runs fn in a transaction of its own. On PostgreSQL it is READ COMMITTED
// whatever the server's default is: each statement must see what was committed
// while an earlier one waited for a lock. On SQLite it holds the writer.
func (s *Store) inTx(ctx context.Context, db txBeginner, fn func(tx bun.Tx) error) error {
	var opts *sql.TxOptions
	if !s.sqlite() {
		opts = &sql.TxOptions{Isolation: sql.LevelReadCommitted}
	}
	tx, err := db.BeginTx(ctx, opts)
	if err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		if rollback := tx.Rollback(); rollback != nil && !errors.Is(rollback, sql.ErrTxDone) {
			return errors.Join(err, rollback)
		}
		return err
	}
	return tx.Commit()
}

// patience is a condition that is always true and bounds, for the rest of the
// transaction, how long PostgreSQL waits for a lock, and for the next statement: one
// of its own would be one more round trip. A context can't do it: the server goes on
// waiting, with all that it has locked, after its client has gone. 0: no bound.
func (s *Store) patience(lock, statement time.Duration) (condition string) {
	bound := func(name string, d time.Duration) {
		if d > 0 && !s.sqlite() {
			condition += fmt.Sprintf(" AND set_config('%s', '%dms', true) <> ''", name, d.Milliseconds())
		}
	}
	bound("lock_timeout", lock)
	bound("idle_in_transaction_session_timeout", statement)
	return condition
}

// lockTimeout says whether err is that bound.
func lockTimeout(err error) bool {
	var state interface{ SQLState() string }
	return errors.As(err, &state) && state.SQLState() == "55P03"
}

// txBeginner is a *bun.DB or a bun.Conn.
type txBeginner interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (bun.Tx, error)
}

// sequence draws a number that is never used twice.
func (s *Store) sequence(ctx context.Context, tx bun.Tx, name string) (n int64, err error) {
	query := "SELECT nextval('outbox_" + name + "_seq')"
	if s.sqlite() {
		query = "UPDATE outbox_sequences SET value = value + 1 WHERE name = '" + name + "' RETURNING value"
	}
	return n, tx.QueryRowContext(ctx, query).Scan(&n)
}

// list is the inside of an IN (…) of numbers.
func list[N int | int64](numbers []N) string {
	var b strings.Builder
	for i, n := range numbers {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatInt(int64(n), 10))
	}
	return b.String()
}

func scanAll[T any](ctx context.Context, db bun.IDB, into *[]T, query string, args ...any) error {
	return dbrows.Each(ctx, db, query, func(scan func(...any) error) error {
		var v T
		err := scan(&v)
		*into = append(*into, v)
		return err
	}, args...)
}
