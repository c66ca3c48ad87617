package outboxdb

import (
	"context"
	"database/sql"
	"errors"

	"github.com/uptrace/bun"
)

// inTx runs fn in a transaction of its own. On PostgreSQL it is READ COMMITTED
// whatever the server's default is: each statement must see what was committed
// while an earlier one waited for a lock. On SQLite it holds the writer.
func (s *Store) inTx(ctx context.Context, db *bun.DB, fn func(tx bun.Tx) error) error {
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
