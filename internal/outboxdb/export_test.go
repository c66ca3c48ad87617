package outboxdb

import (
	"context"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/outbox"
)

// Entries are all rows of what is called outbox: the view, or the first design's
// table.
func Entries(ctx context.Context, db bun.IDB) (all []outbox.Entry, err error) {
	err = dbrows.Each(ctx, db, "SELECT "+entryColumns+" FROM outbox AS o ORDER BY o.seq", func(scan func(...any) error) error {
		e, err := scanEntry(scan)
		all = append(all, e)
		return err
	})
	return all, err
}

// BackfillAtOnce doesn't wait for writers with an old list.
func (s *Store) BackfillAtOnce(ctx context.Context, b outbox.Backfill) (outbox.Backfilled, error) {
	return s.backfill(ctx, b, time.Time{})
}

// Postgres are the statements of a step, as PostgreSQL gets them.
func Postgres(name string) []string { return statements("postgres", name) }

// SQLite are those that SQLite gets.
func SQLite(name string) []string { return load(name).sqlite }

// Plans is how PostgreSQL plans a step's statements.
func Plans(name string) string {
	for _, s := range []step{lanesStep, makeStep, joinStep, takeStep, releaseStep, reapStep} {
		if s.name == name {
			return s.plans()
		}
	}
	return step{name: name}.plans()
}

// KeepHistoryAtOnce doesn't wait for units of work that haven't heard of it.
func (s *Store) KeepHistoryAtOnce(ctx context.Context, name string, tell func(waits string)) error {
	return s.keepHistory(ctx, name, 0, tell)
}
