package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbtime"
)

// TakeTurn says whether it is this caller's turn to do a job that runs once per
// interval over all processes. The first turn comes at once.
func (s *Store) TakeTurn(ctx context.Context, job string, every time.Duration) (bool, error) {
	next := dbtime.In(s.db.Dialect(), every)
	result, err := s.db.ExecContext(ctx, "INSERT INTO outbox_jobs (name, due_at) VALUES (?, "+next+")"+
		" ON CONFLICT (name) DO UPDATE SET due_at = excluded.due_at WHERE outbox_jobs.due_at <= "+s.now(), job)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n == 1, err
}

// Purge removes finished rows that have expired, in statements of batch rows
// each, and returns how many. Rows that are not finished have no expiry, and
// neither have held ones.
//
// It walks the table by seq, from the oldest row to the first page of published
// rows that are all too young, and needs no index of its own, which every settle
// would have to keep.
func (s *Store) Purge(ctx context.Context, batch int) (removed int, err error) {
	var after int64
	for {
		var last int64
		var n, expirable, young int
		err := s.reader.QueryRowContext(ctx, "SELECT COALESCE(max(seq), 0), count(*), COALESCE(sum(CASE WHEN expires_at <= "+s.now()+" THEN 1 ELSE 0 END), 0),"+
			" COALESCE(sum(CASE WHEN status = 'published' AND expires_at > "+s.now()+" THEN 1 ELSE 0 END), 0)"+
			" FROM (SELECT seq, status, expires_at FROM outbox WHERE seq > ? ORDER BY seq LIMIT ?) AS oldest", after, batch).Scan(&last, &n, &expirable, &young)
		if err != nil || n == 0 {
			return removed, err
		}
		if expirable > 0 {
			deleted, err := s.purgeRange(ctx, after, last)
			removed += deleted
			if err != nil {
				return removed, err
			}
		}
		after = last
		if n < batch || expirable == 0 && young > 0 {
			return removed, nil
		}
	}
}

func (s *Store) purgeRange(ctx context.Context, after, last int64) (n int, err error) {
	err = s.inTx(ctx, s.db, func(tx bun.Tx) error {
		result, err := tx.ExecContext(ctx, s.locked(fmt.Sprintf("seq > %d AND seq <= %d AND status IN ('published', 'abandoned') AND NOT held"+
			" AND finished_at IS NOT NULL AND expires_at <= %s", after, last, s.now()))+" DELETE FROM outbox WHERE seq IN (SELECT seq FROM locked)")
		if err != nil {
			return err
		}
		affected, err := result.RowsAffected()
		n = int(affected)
		return err
	})
	return n, err
}
