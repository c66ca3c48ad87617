// Package dbtime writes the database's own clock into SQL. Leases, due times
// and retention never look at a process's clock, which may be minutes off.
package dbtime

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
	"github.com/uptrace/bun/schema"
)

// Layout is how a time stands in a text column of SQLite. Text of this layout
// sorts in the order of time.
const Layout = "2006-01-02T15:04:05.000Z"

// Now is an expression for the present. On PostgreSQL it is clock_timestamp():
// now() would be the start of the transaction.
func Now(d schema.Dialect) string {
	if d.Name() == dialect.SQLite {
		return "strftime('%Y-%m-%dT%H:%M:%fZ','now')"
	}
	return "clock_timestamp()"
}

// Ask returns the present, by the database's clock.
func Ask(ctx context.Context, db bun.IDB) (time.Time, error) {
	var now Time
	if err := db.NewRaw("SELECT "+Now(db.Dialect())).Scan(ctx, &now); err != nil {
		return time.Time{}, fmt.Errorf("ask the database for the time: %w", err)
	}
	return now.Time, nil
}

// In is an expression for the present plus a duration, to the millisecond. The
// duration may be negative.
func In(d schema.Dialect, after time.Duration) string {
	if d.Name() == dialect.SQLite {
		return fmt.Sprintf("strftime('%%Y-%%m-%%dT%%H:%%M:%%fZ','now','%+.3f seconds')", after.Seconds())
	}
	// Before 15 PostgreSQL reads no interval of more than 2,147,483,647 seconds, 68 years.
	return fmt.Sprintf("clock_timestamp() + interval '%+d hours %+.3f seconds'", after/time.Hour, (after % time.Hour).Seconds())
}

// Value is t as an argument of a query.
func Value(d schema.Dialect, t time.Time) any {
	if d.Name() == dialect.SQLite {
		return t.UTC().Format(Layout)
	}
	return t.UTC()
}

// Literal is t as an expression.
func Literal(d schema.Dialect, t time.Time) string {
	if d.Name() == dialect.SQLite {
		return "'" + t.UTC().Format(Layout) + "'"
	}
	return "timestamptz '" + t.UTC().Format(time.RFC3339Nano) + "'"
}

// Seconds is an expression for the seconds from an earlier time to a later one.
func Seconds(d schema.Dialect, from, to string) string {
	if d.Name() == dialect.SQLite {
		return fmt.Sprintf("((julianday(%s) - julianday(%s)) * 86400.0)", to, from)
	}
	return fmt.Sprintf("extract(epoch from (%s) - (%s))::float8", to, from)
}

// Time scans a time column of either database, as UTC. Valid is false for NULL.
type Time struct {
	Time  time.Time
	Valid bool
}

// Scan implements sql.Scanner.
func (t *Time) Scan(src any) error {
	*t = Time{}
	switch v := src.(type) {
	case nil:
		return nil
	case time.Time:
		t.Time = v.UTC()
	case string:
		parsed, err := time.Parse(time.RFC3339Nano, v)
		if err != nil {
			return fmt.Errorf("dbtime: %q is not a time: %w", v, err)
		}
		t.Time = parsed.UTC()
	default:
		return fmt.Errorf("dbtime: a column of type %T is not a time", src)
	}
	t.Valid = true
	return nil
}
