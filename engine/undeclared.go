package engine

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/uow"
)

const (
	undeclaredWithin = 2 * time.Second
	// mostCategories is how many kinds of aggregates a database is looked through for.
	mostCategories = 1000
)

// warnOfUndeclared says which aggregates a database keeps for a context that this build
// doesn't declare: under a new name, none of the old ones are found, and nothing fails.
func (e *Engine) warnOfUndeclared(ctx context.Context, d *database) {
	ctx, cancel := context.WithTimeout(ctx, undeclaredWithin)
	defer cancel()
	stored, err := categories(ctx, d.provider.Reader())
	if err != nil {
		return // What keeps it from being read is told by what needs it.
	}
	for _, m := range e.cfg.Units {
		if slices.ContainsFunc(m.Providers(), func(p uow.Provider) bool { return p.Name() == d.provider.Name() }) {
			if names := undeclared(m, stored); len(names) > 0 {
				e.log.Warn("aggregates are stored that this build doesn't declare: one that was renamed isn't found by its new name, so give it the old one back; of one that has ended, delete the rows in documents and events",
					"provider", d.provider.Name(), "context", m.Domain().Name(), "aggregates", strings.Join(names, ", "))
			}
		}
	}
}

// undeclared are those of the context of m.
func undeclared(m *uow.Manager, stored []string) (names []string) {
	d := m.Domain()
	for _, category := range stored {
		name, own := strings.CutPrefix(category, d.Name()+"::")
		if own && !slices.ContainsFunc(d.Aggregates(), func(a *domain.AggregateType) bool { return a.Name == name }) {
			names = append(names, name)
		}
	}
	return names
}

// categories are those of which aggregates are stored, found by a jump in the primary key for
// each of them.
func categories(ctx context.Context, db bun.IDB) (all []string, err error) {
	for _, table := range []string{"documents", "events"} {
		last := ""
		for range mostCategories {
			err := db.NewRaw("SELECT category FROM ? WHERE category > ? ORDER BY category LIMIT 1", bun.Ident(table), last).Scan(ctx, &last)
			if errors.Is(err, sql.ErrNoRows) {
				break
			}
			if err != nil {
				return nil, err
			}
			all = append(all, last)
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}
