// Package dbrows reads the rows of a query.
package dbrows

import (
	"context"

	"github.com/uptrace/bun"
)

// Each calls row for every row that a query returns, until one fails.
func Each(ctx context.Context, db bun.IDB, query string, row func(scan func(...any) error) error, args ...any) error {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}
