package outbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
)

// Owners returns every partition that had an owner or has unfinished rows, by
// target and number. What it costs depends on the unfinished rows.
func (s *Store) Owners(ctx context.Context) ([]Owned, error) {
	type place struct {
		target    string
		partition int
	}
	all := map[place]*Owned{}
	of := func(target string, partition int) *Owned {
		at := place{target, partition}
		if all[at] == nil {
			all[at] = &Owned{Target: target, Partition: partition}
		}
		return all[at]
	}
	err := s.look(ctx, func(ctx context.Context, db bun.IDB) error {
		err := dbrows.Each(ctx, db, "SELECT target_broker, partition, locked_by, fence, locked_until, COALESCE(locked_until > "+s.now()+", FALSE) FROM outbox_partitions",
			func(scan func(...any) error) error {
				var o Owned
				var until dbtime.Time
				err := scan(&o.Target, &o.Partition, &o.Owner, &o.Fence, &until, &o.Live)
				o.Until = pointer(until)
				*of(o.Target, o.Partition) = o
				return err
			})
		if err != nil {
			return err
		}
		return dbrows.Each(ctx, db, "SELECT target_broker, partition, count(*), "+dbtime.Seconds(s.db.Dialect(), "min(created_at)", s.now())+", sum(CASE WHEN held THEN 1 ELSE 0 END)"+
			" FROM outbox WHERE "+unfinished+" GROUP BY target_broker, partition",
			func(scan func(...any) error) error {
				var target string
				var partition int
				var n, held int64
				var seconds float64
				err := scan(&target, &partition, &n, &seconds, &held)
				o, age := of(target, partition), max(seconds, 0)
				o.Unfinished, o.Held, o.OldestSeconds = n, held, &age
				return err
			})
	})
	if err != nil {
		return nil, fmt.Errorf("outbox: read who owns what: %w", err)
	}
	owners := make([]Owned, 0, len(all))
	for _, o := range all {
		owners = append(owners, *o)
	}
	slices.SortFunc(owners, func(a, b Owned) int {
		return cmp.Or(cmp.Compare(a.Target, b.Target), cmp.Compare(a.Partition, b.Partition))
	})
	return owners, nil
}
