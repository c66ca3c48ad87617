package outboxdb

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/outbox"
)

// Owners returns every partition that has an owner or undelivered rows, by target
// and number. What it costs depends on the undelivered rows.
func (s *Store) Owners(ctx context.Context) ([]outbox.Owned, error) {
	type place struct {
		target    string
		partition int
	}
	all := map[place]*outbox.Owned{}
	err := s.look(ctx, func(ctx context.Context, db bun.IDB) error {
		err := dbrows.Each(ctx, db, s.text("owners"), func(scan func(...any) error) error {
			var o outbox.Owned
			var until dbtime.Time
			err := scan(&o.Target, &o.Partition, &o.Owner, (*nullNumber)(&o.Fence), &until, &o.Live)
			o.Until = pointer(until)
			all[place{o.Target, o.Partition}] = &o
			return err
		}, bun.Safe(s.now()))
		if err != nil {
			return err
		}
		return dbrows.Each(ctx, db, s.text("owners_rows"), func(scan func(...any) error) error {
			var at place
			var n, held int64
			var seconds *float64
			err := scan(&at.target, &at.partition, &n, &held, &seconds)
			o := all[at]
			if o == nil {
				o = &outbox.Owned{Target: at.target, Partition: at.partition}
				all[at] = o
			}
			o.Unfinished, o.Held, o.OldestSeconds = n, held, age(seconds)
			return err
		}, bun.Safe(s.now()))
	})
	if err != nil {
		return nil, fmt.Errorf("outbox: read who owns what: %w", err)
	}
	owners := make([]outbox.Owned, 0, len(all))
	for _, o := range all {
		owners = append(owners, *o)
	}
	slices.SortFunc(owners, func(a, b outbox.Owned) int {
		return cmp.Or(cmp.Compare(a.Target, b.Target), cmp.Compare(a.Partition, b.Partition))
	})
	return owners, nil
}

// age is how long ago something was; nothing is in the future, whatever the clock did.
func age(seconds *float64) *float64 {
	if seconds == nil {
		return nil
	}
	passed := max(*seconds, 0)
	return &passed
}

// Held counts, per target, held keys and what waits behind them.
func (s *Store) Held(ctx context.Context) (map[string]outbox.Held, error) {
	held := map[string]outbox.Held{}
	err := s.look(ctx, func(ctx context.Context, db bun.IDB) error {
		return dbrows.Each(ctx, db, s.text("held"), func(scan func(...any) error) error {
			var target string
			var h outbox.Held
			err := scan(&target, &h.Keys, &h.Behind)
			held[target] = h
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("outbox: count what is held: %w", err)
	}
	return held, nil
}
