package migrate

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
	"github.com/uptrace/bun/schema"
)

// tolerated reads what a file says in its leading comments.
func tolerated(sql string, version int) (int, error) {
	for line := range strings.Lines(sql) {
		comment, ok := strings.CutPrefix(strings.TrimSpace(line), "--")
		if !ok {
			break
		}
		value, ok := strings.CutPrefix(strings.TrimSpace(comment), "tolerates:")
		if !ok {
			continue
		}
		n, err := strconv.Atoi(strings.TrimSpace(value))
		if err != nil || n < 1 || n > version {
			return 0, fmt.Errorf("%q doesn't name the version that a build must know: write a number from 1 to %d, or leave it out", strings.TrimSpace(line), version)
		}
		return n, nil
	}
	return version, nil
}

// bookkept says whether there is a table of versions.
func bookkept(ctx context.Context, db bun.IDB) (exists bool, err error) {
	query := "SELECT to_regclass('waybill_migrations') IS NOT NULL"
	if db.Dialect().Name() == dialect.SQLite {
		query = "SELECT count(*) > 0 FROM sqlite_master WHERE type = 'table' AND name = 'waybill_migrations'"
	}
	err = db.NewRaw(query).Scan(ctx, &exists)
	return exists, err
}

// tolerating says whether the table of versions, which exists, knows what they
// tolerate. One that an earlier build has made doesn't.
func tolerating(ctx context.Context, db bun.IDB) (known bool, err error) {
	query := "SELECT count(*) > 0 FROM pg_attribute WHERE attrelid = 'waybill_migrations'::regclass AND attname = 'tolerates' AND NOT attisdropped"
	if db.Dialect().Name() == dialect.SQLite {
		query = "SELECT count(*) > 0 FROM pragma_table_info('waybill_migrations') WHERE name = 'tolerates'"
	}
	err = db.NewRaw(query).Scan(ctx, &known)
	return known, err
}

// bookkeeping is the table of versions, and complete what one lacks that an earlier
// build has made.
func bookkeeping(d schema.Dialect) string {
	appliedAt := "text"
	if d.Name() == dialect.PG {
		appliedAt = "timestamptz"
	}
	return "CREATE TABLE IF NOT EXISTS waybill_migrations (feature text NOT NULL, version integer NOT NULL, tolerates integer, " +
		"applied_at " + appliedAt + " NOT NULL, PRIMARY KEY (feature, version))"
}

const complete = "ALTER TABLE waybill_migrations ADD COLUMN tolerates integer"

// keepBooks makes or completes the table of versions. It is made before it is looked
// at: what PostgreSQL's catalogue said before the lock was waited for may be over.
// It is altered only if it has to be: readers would wait until the migration ends.
func keepBooks(ctx context.Context, tx bun.Tx) error {
	if _, err := tx.Tx.ExecContext(ctx, bookkeeping(tx.Dialect())); err != nil {
		return err
	}
	known, err := tolerating(ctx, tx)
	if err == nil && !known {
		_, err = tx.Tx.ExecContext(ctx, complete)
	}
	return err
}

// books are the statements of a script that do what keepBooks does.
func books(ctx context.Context, db bun.IDB) ([]string, error) {
	statements := []string{bookkeeping(db.Dialect())}
	exists, err := bookkept(ctx, db)
	if err != nil || !exists {
		return statements, err
	}
	known, err := tolerating(ctx, db)
	if err == nil && !known {
		statements = append(statements, complete)
	}
	return statements, err
}
