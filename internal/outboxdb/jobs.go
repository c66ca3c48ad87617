package outboxdb

import (
	"context"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbtime"
)

// TakeTurn says whether it is this caller's turn to do a job that runs once per
// interval over all processes. The first turn comes at once, and so does one that is due later than
// any can be, from when the database's clock was wrong.
func (s *Store) TakeTurn(ctx context.Context, job string, every time.Duration) (bool, error) {
	result, err := s.db.ExecContext(ctx, s.text("turn_take"), job, bun.Safe(dbtime.In(s.db.Dialect(), every)), bun.Safe(s.now()))
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n == 1, err
}

// GiveBackTurn makes a job due at once whose turn came to nothing.
func (s *Store) GiveBackTurn(ctx context.Context, job string) error {
	_, err := s.db.ExecContext(ctx, s.text("turn_give_back"), job, bun.Safe(s.now()))
	return err
}
