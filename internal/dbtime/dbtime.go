// Package dbtime writes the database's own clock into SQL. Leases, due times
// and retention never look at a process's clock, which may be minutes off.
package dbtime

import (
	"fmt"
	"time"

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

// In is an expression for the present plus a duration, to the millisecond. The
// duration may be negative.
func In(d schema.Dialect, after time.Duration) string {
	s := fmt.Sprintf("%+.3f seconds", after.Seconds())
	if d.Name() == dialect.SQLite {
		return "strftime('%Y-%m-%dT%H:%M:%fZ','now','" + s + "')"
	}
	return "clock_timestamp() + interval '" + s + "'"
}

// Value is t as an argument of a query.
func Value(d schema.Dialect, t time.Time) any {
	if d.Name() == dialect.SQLite {
		return t.UTC().Format(Layout)
	}
	return t.UTC()
}

// Seconds is an expression for the seconds from an earlier time to a later one.
func Seconds(d schema.Dialect, from, to string) string {
	if d.Name() == dialect.SQLite {
		return fmt.Sprintf("((julianday(%s) - julianday(%s)) * 86400.0)", to, from)
	}
	return fmt.Sprintf("extract(epoch from (%s) - (%s))::float8", to, from)
}
