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
// must see what was committed while an earlier one waited for a lock. On SQLite it holds
// the writer.
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
	err = do(tx)
	returned = true
	if err != nil {
		if rollback := tx.Rollback(); rollback != nil && !errors.Is(rollback, sql.ErrTxDone) {
			return errors.Join(err, rollback)
		}
		return err
	}
	return tx.Commit()
}
