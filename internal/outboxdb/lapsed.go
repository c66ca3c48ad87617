package outboxdb

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/relay"
)

// ReapLapsed ends members whose leases passed so long ago, and says how many. Those of
// a target that somebody serves are ended by its members; nobody else would end those
// of one that was taken out.
func (s *Store) ReapLapsed(ctx context.Context, ago time.Duration) (ended int, err error) {
	var lapsed []int64
	if err := scanAll(ctx, s.reader, &lapsed, s.text("lapsed"), bun.Safe(dbtime.In(s.db.Dialect(), -ago))); err != nil {
		return 0, fmt.Errorf("outbox: look for members whose leases have passed: %w", err)
	}
	for _, m := range lapsed {
		reaped, err := s.Reap(ctx, relay.MemberID(m), false)
		if err != nil {
			return ended, err
		}
		if reaped.Done {
			ended++
		}
	}
	return ended, nil
}
