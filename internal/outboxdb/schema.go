package outboxdb

import (
	"cmp"
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"strconv"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/outbox"
)

// maxPartitions keeps what steps send about partitions small.
const maxPartitions = 1024

//go:embed migrations
var migrations embed.FS

// Migrations are the outbox's tables.
func Migrations() migrate.Set {
	return migrate.Embedded("outbox", migrations, rights())
}

// Migrate creates or updates the outbox's tables. A new database gets the given
// partition count (0: 64); one that has another count is an [*outbox.PartitionsError].
func Migrate(ctx context.Context, db *bun.DB, partitions int) error {
	if partitions < 0 || partitions > maxPartitions {
		return fmt.Errorf("outbox: %d partitions: from 1 to %d, or 0 for %d", partitions, maxPartitions, outbox.DefaultPartitions)
	}
	if err := Migrations().Up(ctx, db); err != nil {
		return err
	}
	if err := initPartitions(ctx, db, cmp.Or(partitions, outbox.DefaultPartitions)); err != nil {
		return fmt.Errorf("outbox: write partition count: %w", err)
	}
	have, err := Partitions(ctx, db)
	if err != nil {
		return err
	}
	if partitions != 0 && have != partitions {
		return &outbox.PartitionsError{Have: have, Want: partitions}
	}
	return nil
}

// initPartitions writes nothing where there is a count: who may write none has nothing
// to write once the tables are there.
func initPartitions(ctx context.Context, db *bun.DB, n int) error {
	var there bool
	err := db.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM outbox_settings WHERE name = 'partitions')").Scan(&there)
	if err != nil || there {
		return err
	}
	had, err := madePartitions(ctx, db)
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, "INSERT INTO outbox_settings (name, value) VALUES ('partitions', ?) ON CONFLICT (name) DO NOTHING", strconv.Itoa(cmp.Or(had, n)))
	return err
}

// madePartitions is how many partitions each target has, 0 if none has any. Where somebody has removed
// the count, it is still that many: with another, a key's rows would be in two partitions, and overtake each other.
func madePartitions(ctx context.Context, db bun.IDB) (n int, err error) {
	err = db.QueryRowContext(ctx, "SELECT COALESCE(max(part) + 1, 0) FROM outbox_partitions").Scan(&n)
	return n, err
}

// Partitions is the database's partition count, written by the first migration.
func Partitions(ctx context.Context, db bun.IDB) (int, error) {
	var value string
	err := db.QueryRowContext(ctx, "SELECT value FROM outbox_settings WHERE name = 'partitions'").Scan(&value)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, errors.New("outbox: the partition count is missing from outbox_settings; run `waybill migrate` or engine.Migrate")
	}
	if err != nil {
		return 0, explain(ctx, db, fmt.Errorf("outbox: read partition count: %w", err))
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("outbox: outbox_settings says that there are %q partitions; restore the number that the first migration wrote", value)
	}
	return n, nil
}

// explain says what to do about tables that aren't there, most likely the reason of
// err.
func explain(ctx context.Context, db bun.IDB, err error) error {
	if wrong, ok := errors.AsType[*migrate.SchemaError](Migrations().Check(ctx, db)); ok {
		return wrong
	}
	return err
}
