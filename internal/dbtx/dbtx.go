// Package dbtx runs transactions.
package dbtx

import (
	"context"
	"database/sql"
	"errors"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
)

// Run runs do in a transaction of its own, and rolls it back if do fails. On PostgreSQL
// it is READ COMMITTED whatever the role's and the database's default is: each statement
// must see what was committed while an earlier one waited for a lock. And it ends by itself
// if the process says nothing for five seconds, as one that is stopped or whose network is
// gone: nobody waits for its locks longer than that. On SQLite it holds the writer.
func Run(ctx context.Context, db *bun.DB, do func(tx bun.Tx) error) error {
	var opts *sql.TxOptions
	if db.Dialect().Name() == dialect.PG {
		opts = &sql.TxOptions{Isolation: sql.LevelReadCommitted}
	}
	tx, err := db.BeginTx(ctx, opts)
	if err != nil {
		return err
	}
	returned := false
	defer func() {
		if !returned { // A panic, or the end of the goroutine.
			_ = tx.Rollback()
		}
	}()
	if opts != nil {
		_, err = tx.ExecContext(ctx, "SET LOCAL idle_in_transaction_session_timeout = '5s'")
	}
	if err == nil {
		err = do(tx)
	}
	returned = true
	if err != nil {
		if rollback := tx.Rollback(); rollback != nil && !errors.Is(rollback, sql.ErrTxDone) {
			return errors.Join(err, rollback)
		}
		return err
	}
	return tx.Commit()
}
