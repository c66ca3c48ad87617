// Package dbtx runs transactions.
package dbtx

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/internal/dberr"
)

// grace is how long a commit may take once whoever waits for it has given up.
const grace = 5 * time.Second

// CommitError is a commit that failed. Where that is not the server's own word, as its connection
// was lost, it may have been done.
type CommitError struct{ error }

func (e *CommitError) Error() string {
	if e.Unknown() {
		return "whether it was committed isn't known, as the connection was lost; look before it is done again: " + e.error.Error()
	}
	return e.error.Error()
}

func (e *CommitError) Unwrap() error { return e.error }

// Unknown says that nobody knows whether it was done. One that was rolled back before wasn't.
func (e *CommitError) Unknown() bool {
	code := dberr.CodeOf(e.error)
	return code == "" && !errors.Is(e.error, sql.ErrTxDone) || strings.HasPrefix(code, "57P") || strings.HasPrefix(code, "08")
}

// Run runs do in a transaction of its own, and rolls it back if do fails. On PostgreSQL
// it is READ COMMITTED whatever the role's and the database's default is: each statement
// must see what was committed while an earlier one waited for a lock. And it ends by itself
// if the process says nothing for fifteen seconds, as one that is stopped or whose network is
// gone: by then no engine that waits for its locks has lost its lease. On SQLite it holds the writer.
//
// A context that ends, as by Ctrl-C, ends a statement, and not a commit, of which nobody would
// know then whether it was done.
func Run(ctx context.Context, db *bun.DB, do func(tx bun.Tx) error) error {
	if db.Dialect().Name() != dialect.PG {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		return finish(ctx, tx, do)
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // It goes back to the pool, or is gone.
	lasting, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(grace, end) })()
	tx, err := conn.BeginTx(lasting, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	return finish(ctx, tx, func(tx bun.Tx) error {
		if _, err := tx.ExecContext(ctx, "SET LOCAL idle_in_transaction_session_timeout = '15s'"); err != nil {
			return err
		}
		return do(tx)
	})
}

// finish commits what do has done, or rolls it back.
func finish(ctx context.Context, tx bun.Tx, do func(tx bun.Tx) error) error {
	returned := false
	defer func() {
		if !returned { // A panic, or the end of the goroutine.
			_ = tx.Rollback()
		}
	}()
	err := do(tx)
	returned = true
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		if err = tx.Commit(); err != nil {
			return &CommitError{err}
		}
		return nil
	}
	_ = tx.Rollback() // Where it fails, the connection is gone, and the transaction with it.
	return err
}
