package outboxdb

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/outbox"
)

// clockSteps is by how much rows may be out of the order of their times and still be found
// by these: the database's clock may be set back, and its successor's may be behind.
const clockSteps = time.Hour

// between are bounds for the seqs of what can have been stored in the time that f asks for:
// few are read of a table that has rows of weeks.
func (s *Store) between(ctx context.Context, db bun.IDB, f outbox.Filter) (after, upTo int64, err error) {
	upTo = math.MaxInt64
	if !f.From.IsZero() {
		first, err := s.storedAt(ctx, db, f.From.Add(-clockSteps))
		if err != nil {
			return 0, 0, err
		}
		after = first - 1
	}
	if !f.Until.IsZero() {
		upTo, err = s.storedAt(ctx, db, f.Until.Add(clockSteps))
	}
	return after, upTo, err
}

// storedAt is from which seq on rows were stored at a time or later, by a binary search:
// as seqs grow, so do the times, but for clockSteps.
func (s *Store) storedAt(ctx context.Context, db bun.IDB, at time.Time) (int64, error) {
	var low, high int64
	if err := db.QueryRowContext(ctx, s.text("stored_range")).Scan(&low, &high); err != nil {
		return 0, err
	}
	for low < high {
		middle := low + (high-low)/2
		var (
			seq    int64
			stored dbtime.Time
		)
		err := db.NewRaw(s.text("stored_next"), middle).Scan(ctx, &seq, &stored)
		switch {
		case errors.Is(err, sql.ErrNoRows): // retention has removed the last ones meanwhile
			high = middle
		case err != nil:
			return 0, err
		case stored.Time.Before(at):
			low = seq + 1
		default:
			high = middle
		}
	}
	return low, nil
}
