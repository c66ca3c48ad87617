package outbox

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/migrate"
)

// DefaultPartitions is the partition count of a database whose first migration
// names none.
const DefaultPartitions = 64

// maxPartitions keeps the claim's SQL small.
const maxPartitions = 1024

//go:embed migrations
var migrations embed.FS

// Migrations are the outbox's tables.
func Migrations() migrate.Set {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		panic(err) // the folder is part of this build
	}
	return migrate.Set{Feature: "outbox", Files: files}
}

// Migrate creates or updates the outbox's tables. A new database gets the given
// partition count (0: 64); one that has another count is a [*PartitionsError].
func Migrate(ctx context.Context, db *bun.DB, partitions int) error {
	if partitions < 0 || partitions > maxPartitions {
		return fmt.Errorf("outbox: %d partitions: from 1 to %d, or 0 for %d", partitions, maxPartitions, DefaultPartitions)
	}
	if err := Migrations().Up(ctx, db); err != nil {
		return err
	}
	n := partitions
	if n == 0 {
		n = DefaultPartitions
	}
	_, err := db.ExecContext(ctx, "INSERT INTO outbox_settings (name, value) VALUES ('partitions', ?) ON CONFLICT (name) DO NOTHING", strconv.Itoa(n))
	if err != nil {
		return fmt.Errorf("outbox: write partition count: %w", err)
	}
	have, err := Partitions(ctx, db)
	if err != nil {
		return err
	}
	if partitions != 0 && have != partitions {
		return &PartitionsError{Have: have, Want: partitions}
	}
	return nil
}

// Partitions is the database's partition count, written by the first migration.
func Partitions(ctx context.Context, db bun.IDB) (int, error) {
	var value string
	err := db.QueryRowContext(ctx, "SELECT value FROM outbox_settings WHERE name = 'partitions'").Scan(&value)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, errors.New("outbox: the partition count is missing from outbox_settings; run `waybill migrate` or engine.Migrate")
	}
	if err != nil {
		// Most likely the table isn't there: say what to do about it.
		if schema := Migrations().Check(ctx, db); schema != nil {
			return 0, schema
		}
		return 0, fmt.Errorf("outbox: read partition count: %w", err)
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("outbox: outbox_settings says that there are %q partitions; restore the number that the first migration wrote", value)
	}
	return n, nil
}
