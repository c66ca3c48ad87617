package outboxdb

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/dbtx"
)

// foldAfter is how old a row of the log is when it is counted for good. No settle
// takes as long, so that none with a lower number is still to come.
const foldAfter = time.Minute

// Fold counts for good what was published: then [Store.Stats] has less to add up. The
// log is only inserted into, and nobody else writes the sums.
func (s *Store) Fold(ctx context.Context) error {
	err := dbtx.Run(ctx, s.db, func(tx bun.Tx) error {
		if _, err := tx.ExecContext(ctx, s.text("fold_lock")); err != nil {
			return err
		}
		var upTo int64
		if err := tx.QueryRowContext(ctx, s.text("fold_bound"), bun.Safe(dbtime.In(s.db.Dialect(), -foldAfter))).Scan(&upTo); err != nil {
			return err
		}
		for _, step := range []string{"fold_count", "fold_note"} {
			if _, err := tx.ExecContext(ctx, s.text(step), upTo); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("outbox: count what was published: %w", err)
	}
	return nil
}
